// One function per kind of part that the server sends.

import {figure} from './figures.js';
import {address, el} from './page.js';
import {table} from './table.js';

function verdict(block) {
  const level = block.severity || (['healthy', 'faster'].includes(block.category) ? 'healthy' : 'unknown');
  const label = (block.severity || block.category).replace('_', ' ');
  return el('div', {class: `verdict ${level}`}, ...(block.text.toLowerCase().startsWith(label) ? [] : [el('b', {text: label})]), el('h1', {text: block.text}));
}

function pairs(block) {
  return el('dl', {class: 'facts'}, ...block.rows.map(([label, text]) =>
    el('div', {}, el('dt', {text: label}), el('dd', {text}))));
}

function facts(block) {
  const text = block.items.join(' · ');
  return block.label ? pairs({rows: [[block.label, text]]}) : el('p', {class: 'about', text});
}

function code(block) {
  const text = block.lines.join('\n');
  const pre = el('pre', {tabindex: '0'}, el('code', {text}));
  return el('div', {class: 'code'}, block.label ? el('p', {class: 'about', text: block.label}) : null, pre, copier(text));
}

function copier(text) {
  const button = el('button', {type: 'button', class: 'copy', text: 'Copy', onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = 'Copied';
    } catch {
      button.textContent = 'Select and copy by hand';
    }
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  }});
  return button;
}

function finding(block) {
  const evidence = el('table', {class: 'evidence'}, el('tbody', {}, ...block.evidence.map(([metric, [text, value], basis]) =>
    el('tr', {}, el('th', {scope: 'row', text: metric}), el('td', {class: 'number', text, 'data-value': value}), el('td', {text: basis})))));
  const fixes = block.fixes.flatMap((fix) => [
    el('p', {class: 'fix'}, el('b', {text: 'Fix: '}), el('span', {text: fix.text}), el('span', {class: 'about', text: ` (${fix.kind}) `}),
      fix.treatment ? el('code', {text: fix.treatment}) : null),
    fix.code.length ? code({lines: fix.code}) : null,
  ]);
  return el('details', {class: `finding ${block.severity}`, 'data-code': block.code, open: block.is_open},
    el('summary', {}, el('span', {class: 'severity', text: block.severity}), el('b', {text: block.title}),
      el('span', {class: 'about', text: block.remarks}), el('span', {class: 'says', text: block.summary})),
    el('div', {class: 'inside'},
      el('div', {class: 'scroll plain', tabindex: '0'}, evidence), ...fixes,
      block.basis ? el('p', {class: 'fix'}, el('b', {text: 'Basis of the speedup: '}), el('span', {text: block.basis})) : null,
      el('p', {class: 'about', text: `Details: lightning-perf explain ${block.code}`})));
}

function perfetto(block, parameters) {
  const page = `${address('perfetto/index.html')}#!/?url=${encodeURIComponent(address('trace', parameters))}`;
  const inside = `${page}&mode=embedded`; // no menus, no check for updates
  return el('section', {class: 'perfetto'},
    el('p', {}, el('span', {text: `${block.file} in Perfetto. `}), el('a', {href: page, target: '_blank', rel: 'noopener', text: 'Open in a new tab'})),
    el('iframe', {src: inside, title: `Perfetto showing ${block.file}`}));
}

const DRAWN = {
  verdict, facts, pairs, code, finding, perfetto, figure, table,
  listing: (block) => el('ul', {}, ...block.items.map((text) => el('li', {text}))),
  heading: (block) => el('h3', {text: block.text}),
  note: (block) => el('p', {class: `note ${block.kind}`, text: block.text}),
};

// Long sections are folded, as in the HTML report.
export function draw(sections, parameters) {
  return sections.map(({key, title, parts, is_short: isShort}) => {
    const drawn = parts.map((part) => (DRAWN[part.type] ?? (() => null))(part, parameters));
    if (isShort || !title) return el('section', {'data-section': key}, title ? el('h2', {text: title}) : null, ...drawn);
    return el('details', {class: 'folded', 'data-section': key, 'data-code': key}, el('summary', {}, el('h2', {text: title})), ...drawn);
  });
}
