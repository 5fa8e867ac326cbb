// The line of jobs: who is in it, how far each one is, and what is finished.

const MOST_FOLLOWED = 3;  // browsers open six connections to a server
const SOON_MS = 2000, LATER_MS = 10000;

const isOver = (job) => !["queued", "running"].includes(job.state);

class JobCard {
  constructor(job, cancel, dismiss) {
    this.picture = make("img", {className: "preview", alt: "", hidden: true});
    this.state = make("p", {className: "state"});
    this.bar = make("progress", {"aria-label": "Progress"});
    this.cancel = make("button", {type: "button", "aria-label": `Cancel: ${titleOf(job)}`, onclick: () => cancel(job.id)}, "Cancel");
    this.dismiss = make("button", {type: "button", onclick: () => dismiss(job.id)}, "Dismiss");
    this.root = make("li", {"data-job": job.id}, this.picture,
                     make("div", {}, make("p", {className: "excerpt"}, titleOf(job)), this.state, this.bar),
                     this.cancel, this.dismiss);
    this.began = null;
  }

  draw(job) {
    this.root.className = job.state;
    this.state.textContent = this.words(job);
    this.bar.hidden = job.state !== "running";
    if (job.steps > 0) {
      this.bar.max = job.steps;
      this.bar.value = job.step;
    }
    this.cancel.hidden = isOver(job);
    this.dismiss.hidden = !isOver(job);
  }

  words(job) {
    if (job.state === "failed") return `Failed: ${job.error}`;
    if (job.state === "queued") return job.place > 1 ? `Number ${job.place} in line` : "Next in line";
    return job.steps > 0 ? `Step ${job.step} of ${job.steps}${this.timeLeft(job)}` : "Begins";
  }

  timeLeft(job) {
    this.began ??= {step: job.step, ms: performance.now()};
    const done = job.step - this.began.step;
    if (done < 2) return "";
    const seconds = Math.round((performance.now() - this.began.ms) / 1000 / done * (job.steps - job.step));
    return seconds < 90 ? `, about ${seconds} s left` : `, about ${Math.round(seconds / 60)} min left`;
  }

  showPreview(base64) {
    this.picture.src = `data:image/jpeg;base64,${base64}`;
    this.picture.hidden = false;
  }
}

const titleOf = (job) => job.settings?.prompt || "without a prompt";

class JobLine {
  constructor(gallery, model) {
    this.gallery = gallery;
    this.model = model;
    this.jobs = [];
    this.cards = new Map();
    this.followed = new Set();
    document.addEventListener("visibilitychange", () => document.hidden || this.refresh());
  }

  // Asks for all jobs, shows them, and asks again after a while.
  async refresh() {
    clearTimeout(this.timer);
    try {
      this.show((await get("/v1/jobs")).jobs);
      byId("model").textContent = this.model;
    } catch {
      byId("model").textContent = `${this.model}: the server does not answer`;
    }
    clearTimeout(this.timer);  // of a call beside this one
    const isSoon = this.jobs.some((job) => !isOver(job)) && !document.hidden;
    this.timer = setTimeout(() => this.refresh(), isSoon ? SOON_MS : LATER_MS);
  }

  show(jobs) {
    for (const job of jobs) this.tellWhenOver(job);
    this.jobs = jobs;
    this.draw();
    const active = this.inLine().filter((job) => !isOver(job));
    for (const job of active) if (this.followed.size < MOST_FOLLOWED) this.follow(job.id);
  }

  // Failed ones first, then those that run, then those that wait.
  inLine() {
    const order = ["failed", "running", "queued"];
    return this.jobs.filter((job) => order.includes(job.state)).sort((one, other) =>
      order.indexOf(one.state) - order.indexOf(other.state) || one.place - other.place || one.created - other.created);
  }

  draw() {
    const line = this.inLine();
    const cards = new Map(line.map((job) => [job.id, this.cards.get(job.id) ?? this.card(job)]));
    this.cards = cards;
    for (const job of line) cards.get(job.id).draw(job);
    arrange(byId("queue"), [...cards.values()].map((card) => card.root));
    byId("queue_empty").hidden = line.length > 0;
    const running = line.find((job) => job.state === "running" && job.steps > 0);
    document.title = (running ? `${Math.floor(100 * running.step / running.steps)} % - ` : "") + `${this.model} - Atelier`;
    this.gallery.show(this.jobs);
  }

  card(job) {
    return new JobCard(job, (id) => this.end("POST", `/v1/jobs/${id}/cancel`), (id) => this.end("DELETE", `/v1/jobs/${id}`));
  }

  async end(method, path) {
    try {
      await ask(method, path);
    } catch (error) {
      if (error.status !== 404 && error.status !== 409) showError(error.message);  // it is over or gone already
    }
    byId("generate").focus();
    await this.refresh();
  }

  async follow(id) {
    if (this.followed.has(id)) return;
    this.followed.add(id);
    try {
      await follow(id, (event, data) => event === "preview" ? this.cards.get(id)?.showPreview(data.b64_json) : this.update(data));
    } catch {
      // The next refresh says it.
    }
    this.followed.delete(id);
    this.refresh();
  }

  update(job) {
    const place = this.jobs.findIndex(({id}) => id === job.id);
    if (place < 0) return;
    this.tellWhenOver(job);
    this.jobs[place] = job;
    this.draw();
  }

  tellWhenOver(job) {
    const before = this.jobs.find(({id}) => id === job.id);
    if (!before || isOver(before) || !isOver(job)) return;
    const count = job.files.length;
    if (job.state === "done") say(count === 1 ? "Done: one result." : `Done: ${count} results.`);
    else say(job.state === "failed" ? `Failed: ${job.error}` : "Cancelled.");
  }

  // Puts a request into the line; false: the server refuses it, and why is shown.
  async submit(request) {
    try {
      const job = parseJson(await (await ask("POST", "/v1/jobs", request)).text());
      showError("");
      say(job.place > 1 ? `In line, number ${job.place}.` : "In line.");
      await this.refresh();
      return true;
    } catch (error) {
      showError(error instanceof ServerError ? error.message : "The server does not answer.");
      return false;
    }
  }
}
