// Puts the page together, and listens to what concerns all of it.

// Waits for a server that is only starting.
async function getPatiently(path) {
  for (;;) {
    try {
      return await get(path);
    } catch (error) {
      byId("model").textContent = error instanceof ServerError ? error.message : "The server does not answer yet.";
      await new Promise((done) => setTimeout(done, SOON_MS));
    }
  }
}

function takeSettings(form, settings, from) {
  const missing = form.take(settings);
  say([`Took the settings of ${from}.`, ...missing].join(" "));
}

// Takes the settings of a file that was dropped, or says why not.
async function takeFile(form, file) {
  const settings = await settingsOfFile(file);
  if (settings) return takeSettings(form, settings, file.name);
  const takers = form.takers(file.type).map((field) => labelOf(field.row));
  say(`${file.name} does not say how it was made.` + (takers.length > 0 ? ` To use it, drop it on ${takers.join(" or ")}.` : ""));
}

function listenToDrops(form) {
  const hint = byId("drop_hint");
  const fieldAt = (event) => {
    const root = event.target.closest?.(".drop");
    return root && form.fields.get(root.dataset.name);
  };
  document.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    hint.hidden = Boolean(fieldAt(event));
  });
  document.addEventListener("dragleave", (event) => { hint.hidden = hint.hidden || event.relatedTarget === null; });
  document.addEventListener("drop", async (event) => {
    hint.hidden = true;
    const files = [...event.dataTransfer.files];
    if (files.length === 0) return;
    event.preventDefault();
    const field = fieldAt(event);
    if (field) files.filter((file) => field.takes(file.type)).forEach((file) => field.add({file}));
    else await takeFile(form, files[0]);
  });
}

// A picture that is pasted goes to the field that has the focus, or to the first that takes it.
function listenToPastes(form) {
  document.addEventListener("paste", async (event) => {
    const file = event.clipboardData.files[0];
    if (!file) return;
    event.preventDefault();
    const takers = form.takers(file.type);
    const field = takers.find((taker) => taker.root.contains(document.activeElement)) ?? takers[0];
    if (!field) return takeFile(form, file);
    field.add({file});
    say(`${labelOf(field.row)}: pasted.`);
  });
}

function listenToForm(form, line) {
  byId("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    await line.submit(await form.request());
  });
  byId("reset").addEventListener("click", () => form.clear());
  // The same seed without the LoRAs, at half of their strengths and at the whole.
  byId("compare").addEventListener("click", async () => {
    const seed = (await form.fields.get("seed").value()) ?? -1;
    const one = {num_images: 1, seed: seed === -1 ? String(crypto.getRandomValues(new Uint32Array(1))[0]) : seed};
    for (const factor of [0, 0.5, 1]) if (!await line.submit(await form.request({factor, ...one}))) return;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      byId("form").requestSubmit();
    }
  });
}

function listenToViewer(viewer, form, line) {
  viewer.onTake = (item) => {
    viewer.dialog.close();
    takeSettings(form, {...item.job.settings, seed: item.file.seed}, "this result");
    form.fields.get("prompt").control.focus();
  };
  viewer.onUse = ({job, file, number}) => form.takers(file.content_type).map((field) => [`Use as ${labelOf(field.row)}`, () => {
    viewer.dialog.close();
    field.add({job: job.id, number, url: file.url, type: file.content_type});
    say(`${labelOf(field.row)}: taken from the results.`);
    field.chooser.focus();
  }]);
  viewer.onDelete = async (item) => {
    viewer.dialog.close();
    item.job.files.forEach(({url}) => forgetFile(url));
    await line.end("DELETE", `/v1/jobs/${item.job.id}`);
    say("Deleted.");
  };
}

async function start() {
  const table = await getPatiently("/v1/inputs");
  const {loras} = await getPatiently("/v1/loras");
  const model = [table.model, table.variant].filter(Boolean).join(", ");
  const form = new Form(table, loras);
  const gallery = new Gallery();
  const line = new JobLine(gallery, model);
  listenToForm(form, line);
  listenToViewer(gallery.viewer, form, line);
  listenToDrops(form);
  listenToPastes(form);
  await line.refresh();
}

start();
