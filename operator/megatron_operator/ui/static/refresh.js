// Replaces the parts of the page that are marked data-live by newer ones; all else stays. The newest page has
// the time until the next refresh, or none where it does not change any more.
"use strict";
(() => {
  const state = document.getElementById("refresh-state");
  let seconds = secondsOf(document);

  function secondsOf(page) {
    return Number(page.querySelector('meta[name="refresh-seconds"]')?.content ?? 0);
  }

  // What an element that takes the focus or scrolls is known by in a newer part.
  function nameOf(each) {
    const given = ["id", "href", "aria-label", "aria-labelledby"].map((name) => each.getAttribute(name));
    return `${each.tagName} ${given.find(Boolean) ?? each.parentElement.id}`;
  }

  function usable(part) {
    return [...part.querySelectorAll("a, summary, [tabindex]")];
  }

  function hasSelection(part) {
    const selection = getSelection();
    return !selection.isCollapsed && selection.getRangeAt(0).intersectsNode(part);
  }

  function replace(part, newer) {
    for (const each of part.querySelectorAll("details[id]")) {
      newer.querySelector(`#${CSS.escape(each.id)}`)?.toggleAttribute("open", each.open);
    }
    if (newer.innerHTML === part.innerHTML) return;
    const focused = document.activeElement;
    const kept = usable(part).filter((each) => each === focused || each.scrollTop || each.scrollLeft)
      .map((each) => [nameOf(each), each === focused, each.scrollLeft, each.scrollTop]);
    part.innerHTML = newer.innerHTML;
    for (const [name, hadFocus, left, top] of kept) {
      const each = usable(part).find((other) => nameOf(other) === name);
      if (hadFocus) each?.focus({ preventScroll: true });
      each?.scrollTo(left, top);
    }
  }

  async function refresh() {
    try {
      const request = { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(60000) };
      const answer = await fetch(location.href, request);
      if (!answer.ok) throw new Error(`the page answers ${answer.status}`);
      const newer = new DOMParser().parseFromString(await answer.text(), "text/html");
      let note = "";
      for (const part of document.querySelectorAll("[data-live]")) {
        if (hasSelection(part)) note = "Parts with selected text are not refreshed.";
        else replace(part, newer.getElementById(part.id) ?? newer.createElement("div"));
      }
      const next = secondsOf(newer);
      if (next || !note) seconds = next;
      state.textContent = seconds ? note : "This page does not change any more.";
    } catch (error) {
      state.textContent = `Not refreshed: ${error.message}.`;
    }
  }

  // After the last one: the refreshes of a page that takes long must not pile up.
  async function follow() {
    if (!document.hidden) await refresh();
    if (seconds) setTimeout(follow, seconds * 1000);
  }

  setTimeout(follow, seconds * 1000);
})();
