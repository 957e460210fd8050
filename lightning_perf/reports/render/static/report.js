"use strict";
// Draws the figures; everything else on the page works without scripts.
(function () {
  const { figures, themes } = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 600px)");
  const drawn = new Map();
  let isPrinting = false;

  const theme = () => (dark.matches && !isPrinting ? themes.dark : themes.light);

  // An entity such as &lt; counts as one character and must not be split.
  function shortened(text, limit) {
    const characters = text.match(/&#?\w+;|[^]/gu) || [];
    return characters.length <= limit ? text : characters.slice(0, limit - 1).join("") + "…";
  }

  function layoutOf(figure) {
    const layout = structuredClone(figure.layout);
    layout.template = theme();
    if (narrow.matches && !isPrinting) {
      const axis = layout.yaxis || {};
      if (axis.ticktext) axis.ticktext = axis.ticktext.map((text) => shortened(text, 14));
      layout.font = { size: 11 };
      if (layout.showlegend) {
        // Move the legend above the plot, with as many entries per row as fit.
        const longest = Math.max(...figure.data.map((trace) => (trace.name || "").length));
        const top = 16 + 19 * Math.ceil(figure.data.length / (longest > 18 ? 1 : 2));
        layout.height += top - layout.margin.t;
        layout.margin.t = top;
        Object.assign(layout.legend, { yref: "container", y: 1, yanchor: "top" });
      }
    }
    return layout;
  }

  function dataOf(figure) {
    if (!narrow.matches || isPrinting) return figure.data;
    // Cells of a heat map are too small for numbers.
    return figure.data.map((trace) => (trace.type === "heatmap" ? { ...trace, texttemplate: "" } : trace));
  }

  function draw(name, place) {
    // No mode bar: it covers the figure, and one of its buttons sends the data to a server.
    const figure = figures[name];
    Plotly.react(place, dataOf(figure), layoutOf(figure), { responsive: true, displayModeBar: false });
  }

  function redraw() {
    for (const [name, place] of drawn) draw(name, place);
  }

  // A figure in a closed section has no width: it is drawn when the section is opened.
  function drawShown() {
    for (const element of document.querySelectorAll("figure[data-figure]:not(.failed)")) {
      const name = element.dataset.figure;
      if (drawn.has(name) || element.closest("details:not([open])")) continue;
      const place = element.querySelector(".plot");
      try {
        draw(name, place);
        drawn.set(name, place);
      } catch (error) {
        element.classList.add("failed"); // the tables have the same values
        console.error(name, error);
      }
    }
    document.documentElement.dataset.drawn = drawn.size;
  }

  function openSection() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    const details = target && (target.closest("details") || target.querySelector("details")); // a finding is one
    if (details) details.open = true;
  }

  document.documentElement.classList.add("js");
  document.addEventListener("toggle", drawShown, true); // does not bubble
  window.addEventListener("hashchange", openSection);
  openSection();
  drawShown();
  dark.addEventListener("change", redraw);
  narrow.addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => {
    isPrinting = true;
    for (const details of document.querySelectorAll("details")) details.open = true;
    drawShown();
    redraw();
  });
  window.addEventListener("afterprint", () => {
    isPrinting = false;
    redraw();
  });
})();
