// What the page does beyond its forms and links, all of which work without it: tags are completed, the next
// answers come by scrolling, and pictures are dropped or pasted.
"use strict";

const status = document.getElementById("count");
// The address without what is as usual, to be shared.
const canonical = document.querySelector("link[rel=canonical]");
if (canonical) history.replaceState(history.state, "", canonical.href + location.hash);

const shown = () => document.querySelectorAll(".card").length;

// ---- tags are completed: a combobox with a list, as the ARIA Authoring Practices have it ------------------
(() => {
  const box = document.getElementById("q"), list = document.getElementById("options");
  const words = document.getElementById("as");
  let active = -1, asked = null, timer = 0;

  for (const [name, value] of Object.entries({ role: "combobox", "aria-expanded": "false",
      "aria-controls": "options", "aria-autocomplete": "list", "aria-haspopup": "listbox" })) {
    box.setAttribute(name, value);
  }

  function close() {
    clearTimeout(timer);
    asked?.abort();
    list.hidden = true;
    list.replaceChildren();
    activate(-1);
    box.setAttribute("aria-expanded", "false");
  }

  function activate(number) {
    active = number;
    [...list.children].forEach((option, i) => option.setAttribute("aria-selected", String(i === number)));
    if (number < 0) {
      box.removeAttribute("aria-activedescendant");
    } else {
      box.setAttribute("aria-activedescendant", list.children[number].id);
      list.children[number].scrollIntoView({ block: "nearest" });
    }
  }

  function take(option) {
    box.value = option.dataset.text;
    close();
    box.focus();
  }

  function show(found) {
    list.replaceChildren(...found.map(({ tag, count, text }, i) => {
      const option = document.createElement("li"), name = document.createElement("bdi");
      const seen = document.createElement("span");
      name.textContent = tag;  // as text: whatever a tag holds is no markup
      seen.textContent = count.toLocaleString("en");
      option.append(name, seen);
      Object.assign(option, { id: `option-${i}`, role: "option" });
      option.dataset.text = text;
      return option;
    }));
    list.hidden = !found.length;
    box.setAttribute("aria-expanded", String(!!found.length));
    activate(-1);
  }

  async function complete() {
    asked?.abort();
    asked = new AbortController();
    try {
      const answer = await fetch(`/complete?${new URLSearchParams({ q: box.value })}`, { signal: asked.signal });
      if (answer.ok) show(await answer.json());
    } catch {
      // the next letter came first, or the server is gone: typing goes on
    }
  }

  box.addEventListener("input", () => {
    close();
    if (box.value.trim() && words?.value !== "text") timer = setTimeout(complete, 120);
  });
  box.addEventListener("keydown", (event) => {
    const n = list.children.length;
    if (event.isComposing || !n) return;
    if (event.key === "ArrowDown") activate((active + 1) % n);
    else if (event.key === "ArrowUp") activate(active <= 0 ? n - 1 : active - 1);
    else if (event.key === "Enter" && active >= 0) take(list.children[active]);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  });
  box.addEventListener("blur", close);
  list.addEventListener("mousedown", (event) => {
    event.preventDefault();  // the box keeps the focus
    const option = event.target.closest("li");
    if (option) take(option);
  });
})();

// ---- the next answers come by scrolling: the page that "More" leads to is read, and its cards are moved here
(() => {
  const cards = document.querySelector(".cards");
  let loading = false;

  async function load(next) {
    const form = next instanceof HTMLFormElement ? new FormData(next) : null;
    const answer = await fetch(form ? next.action : next.href, form ? { method: "POST", body: form } : {});
    if (!answer.ok) throw new Error(answer.statusText);
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  }

  const watcher = new IntersectionObserver(async ([seen]) => {
    const next = document.getElementById("next");
    if (!seen.isIntersecting || !next || loading) return;
    loading = true;
    watcher.unobserve(next);
    try {
      const page = await load(next);
      const known = new Set([...cards.children].map((card) => card.dataset.id));
      for (const card of page.querySelectorAll(".card")) {
        if (!known.has(card.dataset.id)) cards.append(document.adoptNode(card));
      }
      const following = page.getElementById("next");
      if (following) next.replaceWith(document.adoptNode(following));
      else next.remove();
      const [first] = status.textContent.match(/^[\d,]+/);
      status.textContent = page.getElementById("count").textContent.replace(/^[\d,]+/, first);
      if (following) watcher.observe(document.getElementById("next"));
    } catch {
      status.textContent = `${shown()} items are shown; the next ones did not come: follow "More" to try again`;
    }
    loading = false;
  }, { rootMargin: "400px" });

  const next = document.getElementById("next");
  if (cards && next) watcher.observe(next);
})();

// ---- a picture that cannot be drawn: its name in its place ------------------------------------------------
document.addEventListener("error", ({ target }) => {
  if (!(target instanceof HTMLImageElement) || !target.dataset.label) return;
  const label = document.createElement("span");
  label.textContent = target.dataset.label;
  target.replaceWith(label);
}, true);

// ---- pictures are dropped, pasted and chosen --------------------------------------------------------------
(() => {
  const form = document.getElementById("drop"), ask = document.querySelector(".ask");
  const kept = "woh-picture";

  // The picture that was sent, small, for the page that answers: the server keeps none.
  async function keep(file) {
    sessionStorage.removeItem(kept);
    try {
      const picture = await createImageBitmap(file);
      const scale = Math.min(1, 256 / Math.max(picture.width, picture.height));
      const canvas = document.createElement("canvas");
      canvas.width = Math.max(1, picture.width * scale);
      canvas.height = Math.max(1, picture.height * scale);
      canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
      sessionStorage.setItem(kept, canvas.toDataURL("image/jpeg"));
    } catch {
      // the server knows kinds of pictures that a browser does not
    }
  }

  async function showKept(canvas) {
    try {
      const [, data] = sessionStorage.getItem(kept).split(",");
      const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
      const picture = await createImageBitmap(new Blob([bytes], { type: "image/jpeg" }));
      canvas.width = picture.width;
      canvas.height = picture.height;
      canvas.getContext("2d").drawImage(picture, 0, 0);
      canvas.hidden = false;
    } catch {
      // none was kept
    }
  }

  const canvas = document.querySelector("canvas#asked");
  if (canvas) showKept(canvas);

  const holds = (data) => [...data.types].includes("Files");
  let depth = 0;
  document.addEventListener("dragover", (event) => {
    if (holds(event.dataTransfer)) event.preventDefault();
  });
  document.addEventListener("dragenter", ({ dataTransfer }) => {
    if (form && holds(dataTransfer)) ask.classList.toggle("dragged", ++depth > 0);
  });
  document.addEventListener("dragleave", ({ dataTransfer }) => {
    if (form && holds(dataTransfer)) ask.classList.toggle("dragged", --depth > 0);
  });
  document.addEventListener("drop", (event) => {
    depth = 0;
    ask.classList.remove("dragged");
    if (!holds(event.dataTransfer)) return;
    event.preventDefault();  // else the browser leaves the page for the file
    send(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;  // text goes where the cursor is
    event.preventDefault();
    send(event.clipboardData.files);
  });

  async function send(files) {
    const file = files[0];
    if (!form) {
      status.textContent = document.getElementById("no-encoder").textContent;
    } else if (file.type && !file.type.startsWith("image/")) {
      status.textContent = "That is no picture; drop one.";
    } else if (file.size > Number(form.dataset.most)) {
      const [size, most] = [file.size, form.dataset.most].map((n) => Number(n).toLocaleString("en"));
      status.textContent = `The picture has ${size} bytes, this server takes ${most}; make it smaller.`;
    } else {
      form.picture.files = files;
      form.where.value = document.getElementById("where").value;
      await keep(file);
      form.submit();
    }
  }

  form?.addEventListener("submit", async (event) => {
    event.preventDefault();
    await send(form.picture.files);
  });
  if (form) document.getElementById("hint").hidden = false;
})();
