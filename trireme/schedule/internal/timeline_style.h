#pragma once
// Style sheet and script of the timeline page: light and dark as the reader's system is. The script lays the
// boxes out again for the part of time that is looked at: each has its begin and end in milliseconds as
// data-s and data-e.

namespace trireme::schedule {

constexpr const char* kTimelineStyle = R"css(
:root { color-scheme: light dark; --page: #fff; --ink: #1d2733; --soft: #52606d; --lane: #eef1f4; --grid: #d8dee4;
  --edge: #c3ccd4; --button: #f6f8fa; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #0d0d0d; --ink: #fff; --soft: #c3c2b7; --lane: #262626; --grid: #3a3a3a; --edge: #4a4a4a;
    --button: #1a1a19; } }
body { margin: 24px auto; max-width: 1240px; padding: 0 20px; background: var(--page); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { margin: 0; font-size: 24px; overflow-wrap: anywhere; }
p { margin: 4px 0 14px; color: var(--soft); max-width: 110ch; }
.bar { display: flex; gap: 8px; align-items: center; margin: 14px 0 6px; color: var(--soft); font-size: 13px; }
.bar button { font: inherit; padding: 2px 12px; border: 1px solid var(--edge); border-radius: 5px;
  background: var(--button); color: var(--ink); cursor: pointer; }
.keys { display: flex; flex-wrap: wrap; gap: 6px 18px; margin: 8px 0 0; font-size: 13px; }
.keys i { display: inline-block; width: 13px; height: 13px; margin-right: 6px; border-radius: 2px;
  vertical-align: -2px; }
svg { display: block; width: 100%; user-select: none; }
svg text { font-size: 11px; fill: var(--soft); }
svg .rank { font-weight: 600; fill: var(--ink); }
.lane { fill: var(--lane); background: var(--lane); }
svg .n { text-anchor: middle; fill: #10222f; pointer-events: none; }
svg .n.w { fill: #fff; }
svg .share { text-anchor: end; font-variant-numeric: tabular-nums; }
.plane { cursor: grab; touch-action: none; }
.b rect { stroke: var(--page); stroke-width: .6; }
.b.off { opacity: .25; }
.tick { stroke: var(--grid); }
.wide { overflow-x: auto; }
.wide td { white-space: nowrap; }
table { margin-top: 20px; border-collapse: collapse; font-size: 13px; }
th, td { padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid var(--grid);
  font-variant-numeric: tabular-nums; }
th { font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
@media print { .bar { display: none; } * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
)css";

constexpr const char* kTimelineScript = R"js(
(function () {
  const svg = document.getElementById('timeline'), left = +svg.dataset.left, width = +svg.dataset.width;
  const whole = +svg.dataset.end, ticks = document.getElementById('ticks');
  const boxes = Array.from(svg.querySelectorAll('.b'), g => ({ g: g, rect: g.firstElementChild,
    label: g.querySelector('text'), s: +g.dataset.s, e: +g.dataset.e, m: g.dataset.m }));
  let from = 0, to = whole;
  function axis() {
    const rough = (to - from) / 10, power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough * 0.999);
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    let marks = '';
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      const x = left + (t - from) / (to - from) * width;
      marks += '<line class="tick" x1="' + x + '" x2="' + x + '" y1="' + ticks.dataset.top + '" y2="' +
        ticks.dataset.bottom + '"/><text text-anchor="middle" x="' + x + '" y="' + (+ticks.dataset.bottom + 14) +
        '">' + t.toFixed(digits) + '</text>';
    }
    ticks.innerHTML = marks;
  }
  function draw() {
    const scale = width / (to - from);
    for (const b of boxes) {
      const x = left + (b.s - from) * scale, w = Math.max((b.e - b.s) * scale, 0.8);
      const seen = x + w > left && x < left + width;
      b.g.style.display = seen ? '' : 'none';
      if (!seen) continue;
      b.rect.setAttribute('x', x);
      b.rect.setAttribute('width', w);
      if (!b.label) continue;
      b.label.setAttribute('x', (Math.max(x, left) + Math.min(x + w, left + width)) / 2);
      b.label.style.display = w < 7 + 6.5 * b.label.textContent.length ? 'none' : '';
    }
    axis();
  }
  function look(a, b) {
    const length = Math.min(Math.max(b - a, whole / 20000), whole);
    from = Math.min(Math.max(a, 0), whole - length);
    to = from + length;
    draw();
  }
  function timeAt(event) {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    return from + (x - left) / width * (to - from);
  }
  function zoom(factor, at) { look(at - (at - from) * factor, at + (to - at) * factor); }
  svg.addEventListener('wheel', function (event) {
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.0015), timeAt(event));
  }, { passive: false });
  let grip = null;
  svg.addEventListener('pointerdown', function (event) { grip = timeAt(event); svg.setPointerCapture(event.pointerId); });
  svg.addEventListener('pointermove', function (event) {
    if (grip === null) return;
    const shift = grip - timeAt(event);
    look(from + shift, to + shift);
  });
  svg.addEventListener('pointerup', function () { grip = null; });
  svg.addEventListener('pointercancel', function () { grip = null; });
  svg.addEventListener('dblclick', function () { look(0, whole); });
  svg.addEventListener('mouseover', function (event) {
    const g = event.target.closest('.b'), m = g && g.dataset.m;
    for (const b of boxes) b.g.classList.toggle('off', !!m && b.m !== m);
  });
  svg.addEventListener('mouseleave', function () { for (const b of boxes) b.g.classList.remove('off'); });
  const buttons = { closer: () => zoom(0.6, (from + to) / 2), wider: () => zoom(1 / 0.6, (from + to) / 2),
    all: () => look(0, whole) };
  for (const name in buttons) document.getElementById(name).addEventListener('click', buttons[name]);
  const wanted = /^#([\d.]+)-([\d.]+)$/.exec(location.hash);
  if (wanted) look(+wanted[1], +wanted[2]); else draw();
})();
)js";

}  // namespace trireme::schedule
