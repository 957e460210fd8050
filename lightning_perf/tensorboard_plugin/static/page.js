// Elements and requests. Text is always set as text, never as markup.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'text') node.textContent = value;
    else if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export async function ask(route, parameters = {}) {
  const response = await fetch(address(route, parameters));
  let reply;
  try {
    reply = await response.json();
  } catch {
    throw new Error(`TensorBoard answered ${response.status} without JSON`);
  }
  if (!response.ok) throw new Error(reply.error ?? `TensorBoard answered ${response.status}`);
  return reply;
}

export function address(path, parameters = {}) {
  const url = new URL(`./${path}`, import.meta.url.replace(/static\/[^/]*$/, ''));
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined) url.searchParams.set(name, value);
  }
  return url.href;
}

// TensorBoard does not announce its dark mode; only a class of its body shows it.
export function themeName() {
  let isDark;
  try {
    isDark = window.parent.document.body.classList.contains('dark-mode');
  } catch {
    isDark = window.matchMedia('(prefers-color-scheme: dark)').matches;
  }
  return isDark ? 'dark' : 'light';
}

export function onTheme(changed) {
  try {
    const watch = new MutationObserver(changed);
    watch.observe(window.parent.document.body, {attributes: true, attributeFilter: ['class']});
  } catch {
    window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', changed);
  }
}
