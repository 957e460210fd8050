// Figures, drawn by plotly from the installed wheel once they come into view.

import {address, ask, el, themeName} from './page.js';

let loading = null;

function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = el('script', {src: address('static/plotly.min.js')});
    script.addEventListener('load', () => resolve(window.Plotly));
    script.addEventListener('error', () => { loading = null; reject(new Error('plotly could not be loaded')); });
    document.head.append(script);
  });
  return loading;
}

// No mode bar: it covers the figure, and one of its buttons sends the data to a server.
const OPTIONS = {responsive: true, displayModeBar: false, topojsonURL: 'none://'};

async function draw(section, place, parameters) {
  const theme = themeName();
  try {
    const reply = await ask('figure', {...parameters, theme});
    if (reply.state === 'reading') {
      setTimeout(() => { if (place.isConnected) draw(section, place, parameters); }, 600);
      return;
    }
    if (reply.state === 'failed') throw new Error(reply.error);
    if (!reply.figure) {
      section.remove();
      return;
    }
    const library = await plotly();
    if (!place.isConnected) return;
    place.classList.remove('waiting');
    place.replaceChildren();
    place.style.minHeight = `${reply.figure.layout.height ?? 300}px`;
    await library.react(place, reply.figure.data, reply.figure.layout, OPTIONS);
    section.dataset.drawn = theme;
    if (theme !== themeName()) draw(section, place, parameters); // it changed meanwhile
  } catch (error) {
    place.classList.remove('waiting');
    place.replaceChildren(el('p', {class: 'note problem', text: `This figure could not be drawn: ${error.message}`}));
  }
}

export function figure(block, parameters) {
  const place = el('div', {class: 'plot waiting', role: 'img', 'aria-label': block.title});
  const section = el('section', {class: 'figure', 'data-figure': block.name}, el('h3', {text: block.title}), place);
  const all = {...parameters, name: block.name};
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    seen.disconnect();
    draw(section, place, all);
  }, {rootMargin: '400px'});
  seen.observe(section);
  section.addEventListener('theme', () => { if (section.dataset.drawn) draw(section, place, all); });
  return section;
}
