// What the server is asked, with the key that it may want.

const KEY = "atelier.key";
let key = sessionStorage.getItem(KEY) ?? "";
let keyQuestion = null;

class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Seeds have 64 bits, and numbers here 53: seeds are texts of digits. A quote within a text is escaped, so that
// neither pattern is found in one.
const parseJson = (text) => JSON.parse(text.replace(/("seed"\s*:\s*)(\d+)/g, '$1"$2"'));
const writeJson = (value) => JSON.stringify(value).replace(/("seed":)"(\d+)"/g, "$1$2");

// Asks the user for the key, once for all requests that wait for it.
function askForKey() {
  keyQuestion ??= new Promise((done) => {
    const dialog = byId("key_dialog");
    if (key) byId("key_message").textContent = "The server refuses this key. Type the one that it was started with.";
    byId("key_form").onsubmit = () => {
      key = byId("key").value;
      byId("key").value = "";
      sessionStorage.setItem(KEY, key);
      keyQuestion = null;
      done();
    };
    dialog.oncancel = (event) => event.preventDefault();
    dialog.showModal();
  });
  return keyQuestion;
}

async function messageOf(reply) {
  try {
    return (await reply.json()).error.message;
  } catch {
    return `the server answers ${reply.status}`;
  }
}

// Throws ServerError, and TypeError where nothing answers.
async function ask(method, path, value, signal) {
  for (;;) {
    const used = key;
    const headers = {};
    if (used) headers.Authorization = `Bearer ${used}`;
    if (value !== undefined) headers["Content-Type"] = "application/json";
    const body = value === undefined ? undefined : writeJson(value);
    const reply = await fetch(path, {method, headers, body, signal, cache: "no-store"});
    if (reply.ok) return reply;
    if (reply.status !== 401) throw new ServerError(reply.status, await messageOf(reply));
    if (used === key) await askForKey();
  }
}

const get = async (path) => parseJson(await (await ask("GET", path)).text());

// Calls `on(event, data)` for what the server sends of a job, until it is over.
async function follow(id, on) {
  const reply = await ask("GET", `/v1/jobs/${id}/events`);
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "";;) {
    const {done, value} = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const name = /^event: ?(.*)$/m.exec(event)?.[1];
      const data = [...event.matchAll(/^data: ?(.*)$/gm)].map((line) => line[1]).join("\n");
      if (name && data) on(name, parseJson(data));
    }
  }
}

// Elements cannot send a key, so with one they show copies of the server's files.
const copies = new Map();

function copyOf(url) {
  if (!copies.has(url)) {
    const copy = ask("GET", url).then((reply) => reply.blob()).then((blob) => URL.createObjectURL(blob));
    copy.catch(() => copies.delete(url));
    copies.set(url, copy);
  }
  return copies.get(url);
}

// Lets `element` show a file of the server by the property `name`.
function showFile(element, url, name = "src") {
  if (key) copyOf(url).then((copy) => { element[name] = copy; }, () => {});
  else element[name] = url;
}

// As showFile() once the element is near what is seen.
const nearlySeen = new IntersectionObserver((entries) => {
  for (const {isIntersecting, target} of entries) {
    if (!isIntersecting) continue;
    nearlySeen.unobserve(target);
    showFile(target, target.dataset.url);
  }
}, {rootMargin: "2000px"});

function showFileWhenNear(element, url) {
  element.dataset.url = url;
  nearlySeen.observe(element);
}

function forgetFile(url) {
  copies.get(url)?.then((copy) => URL.revokeObjectURL(copy), () => {});
  copies.delete(url);
}
