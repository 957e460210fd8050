// Figures, drawn by the plotly that is installed beside TensorBoard, once they come into view.

import {address, ask, el, isDark} from './page.js';

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

const OPTIONS = {responsive: true, displaylogo: false, showSendToCloud: false, showEditInChartStudio: false,
  modeBarButtonsToRemove: ['lasso2d', 'select2d'], topojsonURL: 'none://'};

async function draw(section, place, parameters) {
  try {
    const told = await ask('figure', {...parameters, theme: isDark() ? 'dark' : 'light'});
    if (told.state === 'reading') {
      setTimeout(() => { if (place.isConnected) draw(section, place, parameters); }, 600);
      return;
    }
    if (told.state === 'failed') throw new Error(told.error);
    if (!told.figure) {
      section.remove();
      return;
    }
    const library = await plotly();
    if (!place.isConnected) return;
    place.classList.remove('waiting');
    place.replaceChildren();
    place.style.minHeight = `${told.figure.layout.height ?? 300}px`;
    const style = getComputedStyle(document.documentElement);
    const modebar = {bgcolor: 'rgba(0,0,0,0)', color: style.getPropertyValue('--quiet'), activecolor: style.getPropertyValue('--ink')};
    await library.react(place, told.figure.data, {...told.figure.layout, modebar}, OPTIONS);
    section.dataset.drawn = isDark() ? 'dark' : 'light';
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
