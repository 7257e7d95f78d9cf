#include <algorithm>
#include <array>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/schedule/draw.h"
#include "trireme/schedule/internal/holders.h"
#include "trireme/schedule/internal/look.h"
#include "trireme/schedule/weight_versions.h"

namespace trireme::schedule {
namespace {

constexpr double kLeft = 64;
constexpr double kRight = 20;
constexpr double kRow = 26;
constexpr double kGap = 4;
constexpr double kHeader = 66;
constexpr double kTitle = 30;
constexpr double kLegend = 34;
constexpr double kAxis = 24;
constexpr double kSlot = 24;
constexpr double kMinWidth = 640;
constexpr double kMaxWidth = 2400;
constexpr double kMinForNumber = 11;
constexpr double kDigit = 6;  ///< width of a digit in a box

constexpr std::string_view kStyle =
    "<style>.a{stroke:#fff;stroke-width:.8;rx:2px}.n{text-anchor:middle;font-size:10px;fill:#10222f}"
    ".w{fill:#fff}</style>\n";

constexpr std::string_view kVersionStyle = "<style>.v{font-size:7px}</style>\n";

using CellRows = std::vector<std::vector<Cell>>;

/// [r][i]: the slot of rank r's cell i, if every cell takes one slot. It is the first slot after all inputs
/// of the cell have been computed. For programs that can be simulated.
std::vector<std::vector<std::size_t>> slots_of(const Program& program, const CellRows& cells) {
  const Holders holders(program);
  Made made(holders);
  std::vector<std::vector<std::size_t>> slots(cells.size());
  std::size_t left = 0;
  for (const auto& row : cells) left += row.size();
  for (std::size_t slot = 0; left > 0; ++slot) {
    std::vector<Cell> in_this_slot;
    for (std::size_t rank = 0; rank < cells.size(); ++rank) {
      if (slots[rank].size() == cells[rank].size()) continue;
      const Cell cell = cells[rank][slots[rank].size()];
      const auto is_ready = [&](const Action& action) { return made.has_inputs_of(action); };
      if (!std::all_of(cell.begin(), cell.end(), is_ready)) continue;
      slots[rank].push_back(slot);
      in_this_slot.push_back(cell);
    }
    require(!in_this_slot.empty(), "program '", program.name, "' waits for itself and cannot be drawn; ",
            "'trireme schedule --check' says where");
    for (const Cell cell : in_this_slot)
      for (const Action& action : cell)
        if (is_compute(action.kind)) made.note(action);
    left -= in_this_slot.size();
  }
  return slots;
}

class Drawing {
 public:
  Drawing(const Program& program, const Timeline& timeline)
      : program_(program), timeline_(timeline), versions_(versions_by_action(program)) {
    for (const std::vector<Action>& actions : program.ranks) {
      cells_.push_back(cells_of(actions));
      std::erase_if(cells_.back(), [](Cell cell) { return look_of(cell.front().kind) == nullptr; });
      if (!actions.empty()) begin_ = std::min(begin_, timeline.spans[cells_.size() - 1].front().start);
    }
    slots_ = slots_of(program, cells_);
    std::size_t num_slots = 1;
    for (const auto& row : slots_) num_slots = std::max(num_slots, row.empty() ? 0 : row.back() + 1);
    const double body = std::clamp(static_cast<double>(num_slots) * kSlot, kMinWidth, kMaxWidth);
    slot_ = body / static_cast<double>(num_slots);
    unit_ = timeline.makespan > 0 ? body / timeline.makespan : 1;
    width_ = kLeft + body + kRight;
  }

  std::string svg(const std::vector<View>& views) {
    body_ = header();
    double y = kHeader;
    for (const View view : views) y += draw(view, y);
    legend(y + 12);
    const double height = y + kLegend;
    return text("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", number(width_), "\" height=\"",
                number(height), "\" viewBox=\"0 0 ", number(width_), " ", number(height),
                "\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"11\">\n", kStyle,
                program_.update_every > 0 ? kVersionStyle : "", body_, "</svg>\n");
  }

 private:
  std::string header() const {
    const double peak = *std::max_element(timeline_.peak_memory.begin(), timeline_.peak_memory.end());
    const std::string numbers = text(counted(static_cast<double>(program_.ranks.size()), "rank"), ", ",
                                     counted(program_.num_stages, "stage"), ", ",
                                     counted(program_.num_microbatches, "micro-batch", "es"), "; cost ",
                                     number(timeline_.cost), ", bubble ", percent(timeline_.bubble_rate),
                                     " of the time, at most ", counted(peak, "activation"), " on a rank");
    return text("<title>", escaped(program_.name), ": ", numbers, "</title>\n",
                "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n", "<text x=\"", number(kRight),
                "\" y=\"28\" font-size=\"18\" font-weight=\"600\" fill=\"#1d2733\">", escaped(program_.name),
                "</text>\n<text x=\"", number(kRight), "\" y=\"50\" fill=\"#52606d\">", numbers, "</text>\n");
  }

  /// Returns its height.
  double draw(View view, double top) {
    switch (view) {
      case View::kDevice:
        return panel("Device view: a slot per action", top, [this](std::size_t rank, std::size_t i) {
          const auto slot = static_cast<double>(slots_[rank][i]);
          return Span{slot * slot_, (slot + 1) * slot_};
        });
      case View::kTime: {
        const auto span_of = [this](std::size_t rank, std::size_t i) {
          return time_of(rank, cells_[rank][i]);
        };
        return with_axis(top, panel("Time view: empty is bubble", top, span_of));
      }
      case View::kMicrobatches:
        return with_axis(top, microbatches(top));
    }
    return 0;
  }

  double with_axis(double top, double height) {
    axis(top + height);
    return height + kAxis;
  }

  Span time_of(std::size_t rank, Cell cell) const {
    const auto index = static_cast<std::size_t>(cell.data() - program_.ranks[rank].data());
    const Span& span = timeline_.spans[rank][index];
    return {(span.start - begin_) * unit_, (span.end - begin_) * unit_};
  }

  void title(std::string_view title, double top) {
    body_ += text("<text x=\"", number(kRight), "\" y=\"", number(top + 18),
                  "\" font-weight=\"600\" fill=\"#1d2733\">", title, "</text>\n");
  }

  void row(const std::string& name, double y) {
    body_ +=
        text("<text x=\"", number(kRight), "\" y=\"", number(y + 15), "\" fill=\"#52606d\">", name,
             "</text>\n<rect x=\"", number(kLeft), "\" y=\"", number(y), "\" width=\"",
             number(width_ - kLeft - kRight), "\" height=\"", number(kRow - kGap), "\" fill=\"#eef1f4\"/>\n");
  }

  template <class SpanOf>
  double panel(std::string_view name, double top, const SpanOf& span_of) {
    title(name, top);
    for (std::size_t rank = 0; rank < cells_.size(); ++rank) {
      const double y = top + kTitle + static_cast<double>(rank) * kRow;
      row(text("rank ", rank), y);
      for (std::size_t i = 0; i < cells_[rank].size(); ++i) {
        const Span span = span_of(rank, i);
        cell(rank, cells_[rank][i], {kLeft + span.start, y, span.end - span.start, kRow - kGap});
      }
    }
    return kTitle + static_cast<double>(cells_.size()) * kRow;
  }

  /// W is not drawn: no stage waits for it, and several stages may run theirs at the same time.
  double microbatches(double top) {
    title("Micro-batches: which stage works on them", top);
    const auto y_of = [top](int m) { return top + kTitle + static_cast<double>(m) * kRow; };
    for (int m = 0; m < program_.num_microbatches; ++m) row(text("mb ", m), y_of(m));
    for (std::size_t rank = 0; rank < cells_.size(); ++rank) {
      for (const Cell each : cells_[rank]) {
        const Span span = time_of(rank, each);
        for (const Action& action : each) {
          if (action.microbatch < 0 || action.kind == ActionKind::kBackwardWeight) continue;
          box({action, version_of(rank, action), action.stage},
              {kLeft + span.start, y_of(action.microbatch), span.end - span.start, kRow - kGap});
        }
      }
    }
    return y_of(program_.num_microbatches) - top;
  }

  struct Place {
    double x, y, width, height;
  };

  /// An action, the version of weights that it uses or makes, and the number in its box. Negative numbers:
  /// none.
  struct Boxed {
    const Action& action;
    int version, shown;
  };

  int version_of(std::size_t rank, const Action& action) const {
    return versions_[rank][static_cast<std::size_t>(&action - program_.ranks[rank].data())];
  }

  /// An overlapped pair is two boxes on top of each other.
  void cell(std::size_t rank, Cell cell, Place place) {
    place.height /= static_cast<double>(cell.size());
    for (const Action& action : cell) {
      box({action, version_of(rank, action), action.microbatch}, place);
      place.y += place.height;
    }
  }

  void box(const Boxed& of, const Place& place) {
    const Look& look = *look_of(of.action.kind);
    const bool first_chunk = of.action.stage < static_cast<int>(program_.ranks.size());
    const double drawn = std::max(place.width, 1.5);
    std::string name = to_text(of.action);
    if (of.version >= 0)
      name += text(of.action.kind == ActionKind::kStep ? " makes v" : " with v", of.version);
    body_ += text("<rect class=\"a\" x=\"", number(place.x), "\" y=\"", number(place.y), "\" width=\"",
                  number(drawn), "\" height=\"", number(place.height), "\" fill=\"",
                  first_chunk ? look.light : look.dark, "\"><title>", name, "</title></rect>\n");
    // A full-height row has room for both, one above the other.
    const bool both = of.version >= 0 && of.shown >= 0 && place.height > 2 * kMinForNumber - 1;
    const std::string_view ink = first_chunk ? "n" : "n w";
    const Place middle{place.x + drawn / 2, place.y + place.height / 2 + 3.5, drawn, 0};
    if (of.shown >= 0) words(ink, text(of.shown), {middle.x, middle.y - (both ? 4 : 0), drawn, 0});
    if (both || (of.version >= 0 && of.shown < 0))
      words(text(ink, " v"), text("v", of.version), {middle.x, middle.y + (both ? 4.5 : 0), drawn, 0});
  }

  /// Centered in a box, if the text fits.
  void words(std::string_view style, const std::string& words, const Place& middle) {
    const double needed = std::max(kMinForNumber, 3 + kDigit * static_cast<double>(words.size()));
    if (middle.width < needed) return;
    body_ += text("<text class=\"", style, "\" x=\"", number(middle.x), "\" y=\"", number(middle.y), "\">",
                  words, "</text>\n");
  }

  void axis(double y) {
    const double rough = std::max(timeline_.makespan / 10, 1e-12);
    const double power = std::pow(10, std::floor(std::log10(rough)));
    const double step = rough <= power       ? power
                        : rough <= 2 * power ? 2 * power
                        : rough <= 5 * power ? 5 * power
                                             : 10 * power;
    for (double tick = 0; tick <= timeline_.makespan * (1 + 1e-9); tick += step) {
      body_ += text("<text x=\"", number(kLeft + tick * unit_), "\" y=\"", number(y + 12),
                    "\" text-anchor=\"middle\" font-size=\"9\" fill=\"#52606d\">", number(tick), "</text>\n");
    }
  }

  void legend(double y) {
    double x = kLeft;
    const bool chunks = program_.num_stages > static_cast<int>(program_.ranks.size());
    for (const Look& look : looks()) {
      const bool used = std::any_of(program_.ranks.begin(), program_.ranks.end(), [&](const auto& actions) {
        return std::any_of(actions.begin(), actions.end(),
                           [&](const Action& action) { return action.kind == look.kind; });
      });
      if (!used) continue;
      swatch(x, y, look.light);
      if (chunks) swatch(x + 14, y, look.dark);
      const double label = x + (chunks ? 32 : 18);
      body_ += text("<text x=\"", number(label), "\" y=\"", number(y + 10), "\" fill=\"#1d2733\">", look.name,
                    "</text>\n");
      x = label + 7.0 * static_cast<double>(look.name.size()) + 16;
    }
    std::string_view note;
    if (chunks) note = "light: a rank's first chunk, dark: later ones";
    if (program_.update_every > 0) note = "vN: weights after N updates of the stage";
    if (note.empty()) return;
    body_ +=
        text("<text x=\"", number(x), "\" y=\"", number(y + 10), "\" fill=\"#52606d\">", note, "</text>\n");
  }

  void swatch(double x, double y, std::string_view colour) {
    body_ += text("<rect x=\"", number(x), "\" y=\"", number(y),
                  "\" width=\"12\" height=\"12\" rx=\"2\" fill=\"", colour, "\"/>\n");
  }

  const Program& program_;
  const Timeline& timeline_;
  const std::vector<std::vector<int>> versions_;
  CellRows cells_;
  std::vector<std::vector<std::size_t>> slots_;
  double begin_ = 0;
  double slot_ = 1, unit_ = 1, width_ = 0;
  std::string body_;
};

}  // namespace

View parse_view(std::string_view name) {
  const std::vector<std::string> known = {"device", "time", "microbatches"};
  const auto found = std::find(known.begin(), known.end(), name);
  require(found != known.end(), "there is no view '", name, "'", suggest(name, known));
  return std::array{View::kDevice, View::kTime,
                    View::kMicrobatches}[static_cast<std::size_t>(found - known.begin())];
}

std::string to_svg(const Program& program, const Timeline& timeline, const std::vector<View>& views) {
  require(!views.empty(), "a drawing needs at least one view: device, time or microbatches");
  return Drawing(program, timeline).svg(views);
}

}  // namespace trireme::schedule
