// A table that can be sorted and filtered; long tables are drawn in parts.

import {el} from './page.js';

const PART = 100;

const shown = (cell) => (Array.isArray(cell) ? cell[0] : cell);
const value = (cell) => (Array.isArray(cell) ? cell[1] : cell);

export function table(block) {
  const state = {by: -1, down: true, words: '', drawn: PART};
  const body = el('tbody');
  const isCards = block.key === 'fixes'; // one card per row on a narrow screen
  const bar = (length) => el('td', {class: 'bar', 'aria-hidden': 'true'}, el('span', {style: `width: ${100 * length}%`}));
  const heads = block.heads.map((head, i) =>
    el('th', {scope: 'col', class: block.numbers[i] ? 'number' : '', 'aria-sort': 'none'},
      block.rows.length < 2 ? el('span', {text: head})
        : el('button', {type: 'button', text: head, title: `Sort by ${head || 'the first column'}`, onclick: () => sort(i)})));
  const more = el('button', {type: 'button', class: 'more', onclick: () => { state.drawn += 10 * PART; draw(); }});
  const count = el('span', {class: 'count', role: 'status'});
  const filter = block.rows.length < 12 ? null
    : el('input', {type: 'search', placeholder: 'Filter', 'aria-label': `Filter ${block.title}`, oninput: (event) => {
        state.words = event.target.value.toLowerCase();
        state.drawn = PART;
        draw();
      }});

  function sort(i) {
    // Numbers start with the largest, names with A; a second click reverses the order.
    state.down = state.by === i ? !state.down : block.numbers[i];
    state.by = i;
    heads.forEach((head, j) => head.setAttribute('aria-sort', i !== j ? 'none' : state.down ? 'descending' : 'ascending'));
    draw();
  }

  function ordered() {
    const words = state.words.split(/\s+/).filter(Boolean);
    const rows = block.rows.map((row, i) => Object.assign([...row], {bar: block.bars[i]}));
    const kept = words.length
      ? rows.filter((row) => { const text = row.map(shown).join(' ').toLowerCase(); return words.every((word) => text.includes(word)); })
      : rows;
    if (state.by < 0) return kept;
    const sign = state.down ? -1 : 1;
    return kept.sort((one, other) => {
      const a = value(one[state.by]);
      const b = value(other[state.by]);
      if (a === null || b === null) return (a === null) - (b === null); // unknown values last
      return sign * (typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b)));
    });
  }

  function draw() {
    const rows = ordered();
    body.replaceChildren(...rows.slice(0, state.drawn).map((row) => el('tr', {}, ...row.flatMap((cell, i) => {
      const text = shown(cell);
      const node = el('td', {class: block.numbers[i] ? 'number' : 'text'});
      const inner = text.length > 40 && !isCards ? el('span', {class: 'long', title: text, tabindex: '0', text}) : document.createTextNode(text);
      node.append(inner);
      if (Array.isArray(cell) && cell[1] !== null) node.dataset.value = cell[1];
      if (i > 2 && isCards) node.dataset.head = block.heads[i];
      return i === 0 && row.bar !== undefined ? [node, bar(row.bar)] : [node];
    }))));
    const rest = rows.length - state.drawn;
    more.hidden = rest <= 0;
    more.textContent = `Show more (${rest.toLocaleString('en')} left)`;
    const left = block.left_out ? `; ${block.left_out.toLocaleString('en')} more are not shown here` : '';
    count.textContent = state.words || left ? `${rows.length.toLocaleString('en')} of ${block.rows.length.toLocaleString('en')} rows${left}` : '';
  }

  draw();
  return el('section', {class: 'table', 'data-table': block.key || null},
    block.title || filter ? el('div', {class: 'above'}, block.title ? el('h3', {text: block.title}) : null, filter, count) : null,
    block.about ? el('p', {class: 'about', text: block.about}) : null,
    el('div', {class: isCards ? 'scroll cards' : 'scroll', tabindex: '0', role: 'region', 'aria-label': block.title || 'table'},
      el('table', {}, el('thead', {}, el('tr', {}, ...(block.bars.length ? [heads[0], el('th', {class: 'bar'}), ...heads.slice(1)] : heads))), body)),
    more);
}
