// Elements are made here, and texts are only ever put in as texts.

const byId = (id) => document.getElementById(id);

// An element with properties ("on…": listeners, "aria-…", "data-…" and "for": attributes) and children.
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Tells what happened, to eyes and to screen readers.
function say(text) {
  byId("status").textContent = text;
}

function showError(text) {
  byId("error").textContent = text;
}

// Puts `wanted` into `parent`, and touches only what is not in its place: a moved element loses the focus.
function arrange(parent, wanted) {
  const stays = new Set(wanted);
  for (const child of [...parent.children]) if (!stays.has(child)) child.remove();
  wanted.forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
}

// "num_inference_steps" as people read it, where there is no better word.
function wordsOf(name) {
  const words = name.replaceAll("_", " ");
  return words[0].toUpperCase() + words.slice(1);
}

function bytesAsUrl(blob) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(blob);
  });
}
