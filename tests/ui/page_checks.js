// What tests ask of every view, run in the page: contrast of all text, names of all that can be operated, tables with captions and headers.

function poorContrast(limit) {
  const part = (x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  const light = (c) => 0.2126 * part(c[0] / 255) + 0.7152 * part(c[1] / 255) + 0.0722 * part(c[2] / 255);
  const parse = (c) => c.match(/[\d.]+/g).map(Number);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const e of document.querySelectorAll("body *:not(svg *)")) {
    if (!e.checkVisibility() || e.disabled || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < limit) poor.push(`${e.tagName}.${e.className} ${ratio.toFixed(2)} ${e.textContent.slice(0, 30)}`);
  }
  return poor;
}

function unnamed() {
  const named = (e) => e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length || e.getAttribute("title");
  const operated = [...document.querySelectorAll('a, button, input, select, summary, [tabindex="0"], svg[role=img]')];
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  const bare = (t) => !t.caption || !t.querySelector("th[scope=col]") || !t.querySelector("th[scope=row]");
  return [
    ...operated.filter((e) => e.checkVisibility() && !named(e)).map((e) => e.outerHTML.slice(0, 80)),
    ...ids.filter((e, at) => ids.indexOf(e) !== at),
    ...[...document.querySelectorAll("table")].filter(bare).map((t) => t.outerHTML.slice(0, 80)),
  ];
}
