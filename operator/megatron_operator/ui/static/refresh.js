// Replaces the parts of the page that are marked data-live by newer ones; all else, focus included, stays.
"use strict";
(() => {
  const seconds = Number(document.querySelector('meta[name="refresh-seconds"]').content);
  const state = document.getElementById("refresh-state");

  function replace(part, newer) {
    if (!newer || newer.innerHTML === part.innerHTML || part.contains(document.activeElement)) return;
    const open = [...part.querySelectorAll("details[open][id]")].map((each) => each.id);
    part.innerHTML = newer.innerHTML;
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  }

  async function refresh() {
    if (document.hidden) return;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (!answer.ok) throw new Error(`the page answers ${answer.status}`);
      const newer = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) replace(part, newer.getElementById(part.id));
      state.textContent = "";
    } catch (error) {
      state.textContent = `Not refreshed: ${error.message}.`;
    }
  }

  setInterval(refresh, seconds * 1000);
})();
