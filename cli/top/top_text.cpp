#include "cli/top/top_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>

#include "trireme/base/printable.h"
#include "trireme/base/text.h"
#include "trireme/telemetry/page_text.h"

namespace trireme::cli {
namespace {

using telemetry::RankView;
using telemetry::RunView;

constexpr const char* kUnknown = "-";
constexpr int kGap = 2;

std::string whole_percent(double share) { return text(std::lround(share * 100)); }

std::string in_bytes(double count) { return human_bytes(static_cast<std::uint64_t>(std::max(count, 0.0))); }

double disk_of(const RankView& rank) {
  if (rank.process_disk) return rank.process_disk->read + rank.process_disk->written;
  double sum = 0;
  for (const auto& use : rank.disk) sum += use.read + use.written;
  return sum;
}

/// Characters of a text in UTF-8.
int characters_of(std::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xC0) != 0x80; }));
}

/// The first characters; never cuts a character in two.
std::string cut(std::string_view text, int columns) {
  std::size_t end = 0;
  for (int count = 0; end < text.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(text[end]) & 0xC0) != 0x80;
    if (begins && count++ == columns) break;
  }
  return std::string(text.substr(0, end));
}

/// Breaks long lines at blanks, preferably at two blanks, which separate fields.
std::vector<std::string> wrapped(std::string_view text, int columns) {
  std::vector<std::string> lines;
  while (characters_of(text) > columns) {
    const std::string first = cut(text, columns + 1);
    std::size_t end = first.rfind("  ");
    if (end == std::string::npos || end == 0) end = first.rfind(' ');
    if (end == std::string::npos || end == 0) end = cut(text, columns).size();
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(text.find_first_not_of(' ', end), text.size()));
  }
  lines.emplace_back(text);
  return lines;
}

std::string to_width(const std::string& text, int columns, bool right) {
  const std::string shown = cut(text, columns);
  const std::string space(static_cast<std::size_t>(columns - characters_of(shown)), ' ');
  return right ? space + shown : shown + space;
}

struct Column {
  const char* name;
  int width;       ///< the minimum, for the column that gets the remaining width
  int importance;  ///< the lowest ones are left out first
  bool right;
  std::function<std::string(const RankView&)> cell;
};

std::string state_of(const RankView& rank) {
  if (rank.stopped) return "STOPPED in " + printable(rank.action);
  const std::string action = rank.action.empty() ? name_of(rank.activity) : printable(rank.action);
  return rank.waits ? "waits in " + action : action;
}

const std::vector<Column>& all_columns() {
  static const std::vector<Column> kColumns = {
      {"RANK", 4, 10, true, [](const RankView& rank) { return text(rank.rank); }},
      {"PID", 8, 0, true, [](const RankView& rank) { return text(rank.pid); }},
      {"STEP", 7, 9, true, [](const RankView& rank) { return text(rank.step); }},
      {"ACTION", 12, 11, false, state_of},
      {"FOR", 7, 4, true, [](const RankView& rank) { return human_duration(rank.for_s); }},
      {"OWN%", 4, 8, true, [](const RankView& rank) { return whole_percent(rank.own_share); }},
      {"WAIT%", 5, 7, true, [](const RankView& rank) { return whole_percent(rank.wait_share); }},
      {"DATA%", 5, 3, true, [](const RankView& rank) { return whole_percent(rank.data_share); }},
      {"QUEUE%", 6, 5, true,
       [](const RankView& rank) { return rank.loader_fill ? whole_percent(*rank.loader_fill) : kUnknown; }},
      {"MEMORY", 9, 6, true,
       [](const RankView& rank) {
         return rank.rss_bytes < 0 ? kUnknown : in_bytes(static_cast<double>(rank.rss_bytes));
       }},
      {"LINK/s", 9, 5, true, [](const RankView& rank) { return in_bytes(rank.sent_per_s); }},
      {"DISK/s", 9, 2, true, [](const RankView& rank) { return in_bytes(disk_of(rank)); }},
      {"CPU%", 5, 1, true,
       [](const RankView& rank) { return rank.cpu_share < 0 ? kUnknown : whole_percent(rank.cpu_share); }},
  };
  return kColumns;
}

std::vector<Column> columns_for(int width) {
  std::vector<Column> columns = all_columns();
  const auto total = [&] {
    int sum = -kGap;
    for (const Column& column : columns) sum += column.width + kGap;
    return sum;
  };
  while (columns.size() > 1 && total() > width) {
    columns.erase(std::min_element(columns.begin(), columns.end(), [](const Column& a, const Column& b) {
      return a.importance < b.importance;
    }));
  }
  constexpr int kWidestAction = 48;
  for (Column& column : columns) {
    if (!column.right) column.width = std::clamp(column.width + width - total(), 1, kWidestAction);
  }
  return columns;
}

std::string row_of(const std::vector<Column>& columns, const RankView* rank) {
  std::string line;
  for (const Column& column : columns) {
    if (!line.empty()) line += std::string(kGap, ' ');
    line += to_width(rank == nullptr ? column.name : column.cell(*rank), column.width, column.right);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string title_of(const RunView& view) {
  const std::filesystem::path folder = view.run;
  std::string title = folder.empty() ? "program without a run folder" : printable(folder.filename().string());
  title += text(" on ", printable(view.host), ": ");
  const auto here = static_cast<int>(view.ranks.size());
  title += view.world_size > here ? text(here, " of ", view.world_size, " ranks are on this host")
                                  : text(here, here == 1 ? " rank" : " ranks");
  std::uint64_t step = 0;
  double speed = 0;
  for (const RankView& rank : view.ranks) {
    step = std::max(step, rank.step);
    speed = std::max(speed, rank.steps_per_s);
  }
  return title + text(", step ", step, ", ", telemetry::short_number(speed, 3), " steps/s");
}

std::string pressure_of(const telemetry::HostPressure& pressure) {
  const auto words = [](const telemetry::Pressure& of) {
    return of.some ? text(std::lround(*of.some), " %") : std::string(kUnknown);
  };
  return text("pressure  cpu ", words(pressure.cpu), "  memory ", words(pressure.memory), "  disk ",
              words(pressure.io));
}

/// Sums over all ranks.
std::string disk_line(const RunView& view) {
  std::string line = "disk/s ";
  for (std::size_t use = 0; use < kNumDiskUses; ++use) {
    double read = 0, written = 0;
    for (const RankView& rank : view.ranks) {
      read += rank.disk[use].read;
      written += rank.disk[use].written;
    }
    line += text("  ", name_of(static_cast<DiskUse>(use)), " ", in_bytes(read + written));
  }
  return line;
}

std::string memory_line(const RunView& view) {
  MemoryUse sum;
  bool on_device = false;
  for (const RankView& rank : view.ranks) {
    const bool device = rank.device_memory.total() > 0;
    on_device = on_device || device;
    for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
      sum.bytes[kind] += device ? rank.device_memory.bytes[kind] : rank.memory.bytes[kind];
  }
  std::string line = on_device ? "device peak" : "memory peak";
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
    if (sum.bytes[kind] > 0)
      line += text("  ", name_of(static_cast<MemoryKind>(kind)), " ",
                   in_bytes(static_cast<double>(sum.bytes[kind])));
  }
  return sum.total() > 0 ? line : std::string();
}

std::string styled(const std::string& line, const char* style, bool colours) {
  return colours ? text("\x1b[", style, "m", line, "\x1b[0m") : line;
}

}  // namespace

std::vector<std::string> lines_of(const RunView& view, const TextSize& size) {
  const auto found = telemetry::straggler(view);
  const auto columns = columns_for(size.columns);
  std::vector<std::string> lines;
  const auto add = [&](const std::string& line, const char* style = nullptr) {
    for (const std::string& part : wrapped(line, size.columns))
      lines.push_back(style == nullptr ? part : styled(part, style, size.colours));
  };
  add(title_of(view), "1");
  if (found) {
    add(describe(*found), "1;31");
  } else {
    add("no straggler: no rank costs more than 5 % of the time");
  }
  add(pressure_of(view.pressure));
  add(disk_line(view));
  if (const std::string memory = memory_line(view); !memory.empty()) add(memory);
  add("");
  add(row_of(columns, nullptr), "7");
  const bool all = size.rows == 0 || lines.size() + view.ranks.size() <= static_cast<std::size_t>(size.rows);
  const std::size_t room =
      all ? view.ranks.size()
          : static_cast<std::size_t>(std::max(size.rows - static_cast<int>(lines.size()) - 1, 0));
  for (std::size_t i = 0; i < room; ++i) {
    const RankView& rank = view.ranks[i];
    add(row_of(columns, &rank), found && found->rank == rank.rank ? "31" : nullptr);
  }
  if (!all) add(text("... and ", view.ranks.size() - room, " ranks that are faster"));
  if (size.rows > 0 && lines.size() > static_cast<std::size_t>(size.rows))
    lines.resize(static_cast<std::size_t>(size.rows));
  return lines;
}

}  // namespace trireme::cli
