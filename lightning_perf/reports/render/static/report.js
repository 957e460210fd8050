"use strict";
// Draws the figures over the tables that are there without it.
(function () {
  const { figures, themes } = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 600px)");
  const drawn = new Map();
  let isPrinting = false;

  const theme = () => (dark.matches && !isPrinting ? themes.dark : themes.light);

  // An entity such as &lt; is one character: half of one would show as it stands.
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
        // As many entries side by side as there is room for, in a place of their own above the plot.
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
    // No room for figures in the cells of a heat map.
    return figure.data.map((trace) => (trace.type === "heatmap" ? { ...trace, texttemplate: "" } : trace));
  }

  function draw(name, place) {
    // No bar of buttons: it would lie over the figure, and one of them sends the data to a server.
    const figure = figures[name];
    Plotly.react(place, dataOf(figure), layoutOf(figure), { responsive: true, displayModeBar: false });
  }

  function redraw() {
    for (const [name, place] of drawn) draw(name, place);
  }

  function showFinding(code) {
    const finding = document.getElementById(code);
    if (!finding || finding.tagName !== "DETAILS") return;
    finding.open = true;
    finding.scrollIntoView({ block: "nearest" });
  }

  document.documentElement.classList.add("js");
  for (const element of document.querySelectorAll("figure[data-figure]")) {
    const name = element.dataset.figure;
    const place = element.querySelector(".plot");
    try {
      draw(name, place);
      drawn.set(name, place);
    } catch (error) {
      element.classList.add("failed"); // what it would show stands in the tables too
      console.error(name, error);
    }
  }
  const findings = drawn.get("findings");
  if (findings) findings.on("plotly_click", (event) => showFinding(event.points[0].customdata[0]));
  dark.addEventListener("change", redraw);
  narrow.addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => {
    isPrinting = true;
    for (const details of document.querySelectorAll("details")) details.open = true;
    redraw();
  });
  window.addEventListener("afterprint", () => {
    isPrinting = false;
    redraw();
  });
  document.documentElement.dataset.drawn = drawn.size;
})();
