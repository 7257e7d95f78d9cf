#pragma once
// The style sheet of report.html: light and dark as the reader's system is, light on paper.

namespace trireme::telemetry {

constexpr const char* kReportStyle = R"css(
:root { color-scheme: light dark; --page: #f9f9f7; --card: #fcfcfb; --ink: #0b0b0b; --soft: #52514e;
  --axis: #898781; --grid: #e1e0d9; --edge: #e4e3dd; --strip: #0b0b0b12; --good: #0a7a0a; --warn: #9a5b00;
  --c0: #2a78d6; --c1: #eb6834; --c2: #1baf7a; --c3: #eda100; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #0d0d0d; --card: #1a1a19; --ink: #ffffff; --soft: #c3c2b7; --axis: #898781; --grid: #2c2c2a;
    --edge: #2c2c2a; --strip: #ffffff18; --good: #43c043; --warn: #fab219;
    --c0: #3987e5; --c1: #d95926; --c2: #199e70; --c3: #c98500; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 28px 20px 48px; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { margin: 0; font-size: 28px; overflow-wrap: anywhere; }
h2 { margin: 32px 0 12px; font-size: 18px; }
.sub { margin: 4px 0 20px; color: var(--soft); }
.status { display: inline-block; margin-left: 10px; padding: 1px 11px; border: 1px solid currentColor;
  border-radius: 99px; font-size: 14px; font-weight: 500; vertical-align: 5px; color: var(--warn); }
.status.completed { color: var(--good); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.tile, figure, .card { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; }
.tile { padding: 12px 16px; color: var(--soft); font-size: 13px; }
.tile b { display: block; color: var(--ink); font-size: 24px; font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 14px; }
figure { margin: 0; padding: 14px 14px 8px; break-inside: avoid; display: flex; flex-direction: column; }
figcaption { font-weight: 600; }
small { color: var(--soft); font-weight: 400; font-size: 13px; }
.legend { color: var(--soft); font-size: 13px; }
.legend span { margin-right: 16px; white-space: nowrap; }
.legend i { display: inline-block; width: 14px; height: 4px; margin-right: 6px; border-radius: 2px;
  vertical-align: middle; }
svg { display: block; width: 100%; margin-top: auto; padding-top: 6px; overflow: visible; }
svg text { fill: var(--axis); font-size: 11.5px; font-variant-numeric: tabular-nums; }
.grid, .axis { fill: none; stroke: var(--grid); }
.axis { stroke: var(--axis); }
.s0 { --colour: var(--c0); } .s1 { --colour: var(--c1); } .s2 { --colour: var(--c2); } .s3 { --colour: var(--c3); }
.line { fill: none; stroke: var(--colour); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line.faint { stroke-width: 1; }
.faint { opacity: .4; }
.area { fill: var(--colour); stroke: var(--card); stroke-width: 1; }
.dot { fill: var(--colour); stroke: var(--card); stroke-width: 1.5; }
.legend i { background: var(--colour); }
.strip { fill: transparent; }
.strip:hover { fill: var(--strip); }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 14px;
  align-items: start; }
.card { padding: 10px 16px 14px; break-inside: avoid; }
.settings { columns: 3 260px; column-gap: 14px; }
.settings .card { margin: 0 0 14px; }
h3 { margin: 4px 0 6px; font-size: 14px; }
table { width: 100%; border-collapse: collapse; font-size: 13.5px; }
td { padding: 3px 0; border-top: 1px solid var(--grid); vertical-align: top; overflow-wrap: anywhere; }
td:first-child { color: var(--soft); padding-right: 14px; white-space: nowrap; }
td:last-child { text-align: right; font-variant-numeric: tabular-nums; }
footer { margin-top: 28px; color: var(--soft); font-size: 13px; }
@media print { body { padding: 0; max-width: none; background: none; font-size: 12px; }
  .charts { grid-template-columns: 1fr 1fr; } * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
)css";

}  // namespace trireme::telemetry
