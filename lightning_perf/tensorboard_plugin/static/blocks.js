// One function for each kind of block that the server sends.

import {figure} from './figures.js';
import {address, el} from './page.js';
import {table} from './table.js';

function verdict(block) {
  const level = block.severity || (block.category === 'healthy' ? 'healthy' : 'unknown');
  return el('p', {class: `verdict ${level}`}, el('b', {text: block.severity || block.category}), el('span', {text: block.text}));
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
    el('p', {class: 'fix'}, el('b', {text: 'Fix '}), el('span', {text: fix.text}), el('span', {class: 'about', text: ` (${fix.kind})`})),
    fix.code.length ? code({lines: fix.code}) : null,
  ]);
  return el('details', {class: `finding ${block.severity}`, 'data-code': block.code},
    el('summary', {}, el('span', {class: 'severity', text: block.severity}), el('b', {text: block.title}),
      el('span', {class: 'gain', text: block.speedup ? `speedup ${block.speedup}` : ''}), el('span', {class: 'says', text: block.summary})),
    el('div', {class: 'inside'},
      el('h4', {text: 'Evidence'}), evidence,
      ...fixes,
      block.speedup ? el('p', {class: 'fix'}, el('b', {text: 'Expected speedup '}), el('span', {text: block.basis ? `${block.speedup} (${block.basis})` : block.speedup})) : null,
      el('p', {class: 'about', text: `Confidence: ${block.confidence}${block.remark ? `, ${block.remark}` : ''}. Details: lightning-perf explain ${block.code}`})));
}

function perfetto(block, parameters) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined));
  const trace = address(`trace?${query}`);
  const page = `${address('perfetto/index.html')}#!/?url=${encodeURIComponent(trace)}`;
  const inside = `${page}&mode=embedded`; // without its menus, and without its own look for newer files
  return el('section', {class: 'perfetto'},
    el('p', {}, el('span', {text: `${block.file} in Perfetto. `}), el('a', {href: page, target: '_blank', rel: 'noopener', text: 'Open in a new tab'})),
    el('iframe', {src: inside, title: `Perfetto showing ${block.file}`}));
}

const DRAWN = {
  verdict, facts, pairs, code, finding, perfetto, figure, table,
  listing: (block) => el('ul', {}, ...block.items.map((text) => el('li', {text}))),
  heading: (block) => el('h2', {text: block.text}),
  note: (block) => el('p', {class: `note ${block.kind}`, text: block.text}),
};

export function draw(blocks, parameters) {
  return blocks.map((block) => (DRAWN[block.type] ?? (() => null))(block, parameters)).filter(Boolean);
}
