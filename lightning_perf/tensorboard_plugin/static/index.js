// The PERFDOCTOR tab. TensorBoard calls render() once and keeps the page, so the page polls for changes.

import {draw} from './static/blocks.js';
import {address, ask, el, onTheme, themeName} from './static/page.js';

const POLL_MS = 5000;
const READING_MS = 600;
const DIFF = ['diff', 'Diff'];

const state = {runs: [], views: [], run: null, base: null, view: 'overview', trace: null, empty: {}, search: [], asked: 0, drawn: ''};
const page = {};

export async function render() {
  document.head.append(el('link', {rel: 'stylesheet', href: address('static/style.css')}));
  document.title = 'PerfDoctor';
  page.run = el('select', {id: 'run', onchange: () => choose({run: page.run.value, trace: null})});
  page.base = el('select', {id: 'base', onchange: () => choose({base: page.base.value})});
  page.trace = el('select', {id: 'trace', onchange: () => choose({trace: Number(page.trace.value)})});
  page.forBase = el('label', {for: 'base'}, el('span', {text: 'compared with'}), page.base);
  page.forTrace = el('label', {for: 'trace'}, el('span', {text: 'Trace'}), page.trace);
  page.forBase.hidden = page.forTrace.hidden = true;
  page.about = el('span', {class: 'about', id: 'about'});
  page.tabs = el('div', {role: 'tablist', 'aria-label': 'Views', onkeydown: move});
  page.view = el('main', {id: 'view', role: 'tabpanel', tabindex: '-1', 'aria-live': 'polite'});
  document.body.replaceChildren(
    el('header', {}, el('label', {for: 'run'}, el('span', {text: 'Run'}), page.run), page.forBase, page.forTrace, page.about),
    page.tabs, page.view);
  theme();
  onTheme(theme);
  await poll();
  setInterval(() => { if (!document.hidden) poll(); }, POLL_MS);
  document.addEventListener('visibilitychange', () => { if (!document.hidden) poll(); });
}

function theme() {
  const now = themeName();
  if (document.documentElement.dataset.theme === now) return;
  document.documentElement.dataset.theme = now;
  for (const figure of document.querySelectorAll('[data-figure]')) figure.dispatchEvent(new Event('theme'));
}

async function poll() {
  let reply;
  try {
    reply = await ask('runs');
  } catch (error) {
    state.drawn = ''; // draw the view again once TensorBoard answers
    say(`PerfDoctor cannot reach TensorBoard: ${error.message}`, 'problem');
    return;
  }
  const before = stamp();
  state.runs = reply.runs;
  state.search = [reply.is_complete ? '' : 'still searching the log directory', reply.is_cut ? 'the log directory has too many folders: some were not searched' : ''];
  state.views = [...reply.views, DIFF];
  const known = (id) => state.runs.some((run) => run.id === id);
  if (!known(state.run)) Object.assign(state, {run: state.runs[0]?.id ?? null, trace: null});
  if (!known(state.base) || state.base === state.run) state.base = other();
  list(page.run, state.run);
  list(page.base, state.base);
  about();
  tabs();
  if (!state.runs.length) {
    state.drawn = '';
    say(reply.is_complete ? 'This log directory has no PerfDoctor sessions and no profiler traces yet. Add PerfDoctor() to the callbacks of the Trainer.'
      : 'Searching the log directory …');
  } else if (stamp() !== before || !state.drawn) show();
}

const time = (id) => state.runs.find((run) => run.id === id)?.time ?? 0;

// The default base of a comparison: the previous run of the same kind and stage, else the next one.
function other() {
  const kind = (run) => (run.kind === 'traces' ? 'traces' : run.stage || 'fit');
  const mine = state.runs.filter((run) => run.id === state.run).map(kind)[0];
  const rest = state.runs.filter((run) => run.id !== state.run && !run.error);
  const alike = rest.filter((run) => kind(run) === mine);
  const latest = (runs) => runs.reduce((one, run) => (one && one.time >= run.time ? one : run), null);
  const isEarlier = (run) => run.time <= time(state.run);
  const next = (runs) => runs.reduce((one, run) => (one && one.time <= run.time ? one : run), null);
  return (latest(alike.filter(isEarlier)) ?? next(alike) ?? latest(rest.filter(isEarlier)) ?? next(rest))?.id ?? null;
}

// Whichever run was chosen first, the older one is the base.
function pair() {
  return time(state.base) <= time(state.run) ? {base: state.base, new: state.run} : {base: state.run, new: state.base};
}

// What the page shows, whatever its content.
const place = () => [state.view, state.trace, state.run].join('|');

// Changes whenever the view is out of date.
function stamp() {
  const of = (id) => `${id}@${state.runs.find((run) => run.id === id)?.stamp}`;
  return [state.view, state.trace, of(state.run), state.view === 'diff' ? of(state.base) : ''].join('|');
}

function list(select, chosen) {
  const labels = state.runs.map((run) => [run.id, run.error ? `${run.label} (cannot be read)` : run.label]);
  const now = JSON.stringify(labels);
  if (select.dataset.listed !== now) {
    select.dataset.listed = now;
    select.replaceChildren(...labels.map(([id, label]) => el('option', {value: id, text: label.length > 90 ? `…${label.slice(-90)}` : label, title: label})));
  }
  if (chosen !== null) select.value = chosen;
}

function about() {
  const one = state.runs.find((run) => run.id === state.run);
  page.about.textContent = [one?.status, one?.started_at && `${one.started_at.slice(0, 16).replace('T', ' ')} UTC`, ...state.search].filter(Boolean).join(' · ');
}

function tabs() {
  if (page.tabs.childElementCount !== state.views.length) {
    page.tabs.replaceChildren(...state.views.map(([name, title]) =>
      el('button', {type: 'button', role: 'tab', id: `tab-${name}`, 'data-view': name, 'aria-controls': 'view', text: title, onclick: () => choose({view: name})})));
  }
  for (const tab of page.tabs.children) {
    const isChosen = tab.dataset.view === state.view;
    tab.setAttribute('aria-selected', isChosen);
    tab.tabIndex = isChosen ? 0 : -1;
    const hint = tab.dataset.view === 'diff' ? (state.runs.length < 2 ? 'There is only one run.' : '') : state.empty[tab.dataset.view] ?? '';
    tab.classList.toggle('empty', Boolean(hint));
    tab.title = hint && `Empty: ${hint}`;
  }
  page.view.setAttribute('aria-labelledby', `tab-${state.view}`);
}

function move(event) {
  const names = state.views.map(([name]) => name);
  const at = names.indexOf(state.view);
  const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1}[event.key];
  if (to === undefined) return;
  event.preventDefault();
  choose({view: names[(to + names.length) % names.length]});
  page.tabs.children[(to + names.length) % names.length].focus();
}

function choose(change) {
  if (change.base) state.isBaseChosen = true;
  Object.assign(state, change);
  if (!state.isBaseChosen || state.base === state.run) state.base = other();
  if (state.base !== null) page.base.value = state.base;
  about();
  tabs();
  show();
}

function say(text, kind = 'note') {
  state.place = null;
  page.view.replaceChildren(el('p', {class: `note ${kind}`, role: 'status', text}));
}

// Answers to outdated requests are dropped.
async function show() {
  const mine = ++state.asked;
  const isDiff = state.view === 'diff';
  const now = stamp();
  const isNew = state.place !== place();
  const parameters = isDiff ? pair() : {run: state.run, trace: state.trace};
  page.forBase.hidden = !isDiff;
  if (isDiff) page.forTrace.hidden = true;
  if (isDiff && (state.base === null || state.base === state.run)) {
    state.drawn = now;
    say(state.runs.length < 2 ? 'There is only one run: a diff needs a second one.' : 'Choose two different runs.');
    return;
  }
  page.view.setAttribute('aria-busy', 'true');
  page.view.dataset.view = '';
  let reply;
  try {
    reply = await ask(isDiff ? 'diff' : 'view', isDiff ? parameters : {...parameters, view: state.view});
  } catch (error) {
    reply = {state: 'failed', error: error.message};
  }
  if (mine !== state.asked) return;
  page.view.setAttribute('aria-busy', 'false');
  if (reply.state === 'reading') {
    say(reply.text);
    setTimeout(() => { if (mine === state.asked) show(); }, READING_MS);
    return;
  }
  state.drawn = now;
  traces(reply);
  if (reply.state === 'failed') {
    say(reply.error, 'problem');
    return;
  }
  state.place = place();
  if (reply.empty) state.empty = reply.empty;
  tabs();
  const open = new Set(isNew ? [] : [...page.view.querySelectorAll('details[open]')].map((one) => one.dataset.code));
  const at = document.scrollingElement.scrollTop;
  page.view.replaceChildren(...draw(reply.sections, parameters));
  if (!isNew) for (const one of page.view.querySelectorAll('details')) one.open = open.has(one.dataset.code);
  document.scrollingElement.scrollTop = isNew ? 0 : at; // keep the place while a run goes on
  page.view.dataset.view = state.view;
  page.view.dataset.run = state.run;
}

function traces(reply) {
  if (reply.traces === undefined) return;
  page.forTrace.hidden = reply.traces.length < 2;
  const labels = JSON.stringify(reply.traces);
  if (page.trace.dataset.listed !== labels) {
    page.trace.dataset.listed = labels;
    page.trace.replaceChildren(...reply.traces.map((label, i) => el('option', {value: i, text: label})));
  }
  page.trace.value = reply.trace;
}
