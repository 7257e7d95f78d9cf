#include <algorithm>
#include <cmath>

#include "trireme/base/text.h"
#include "trireme/schedule/draw.h"
#include "trireme/schedule/internal/look.h"

namespace trireme::schedule {
namespace {

constexpr double kLeft = 64;
constexpr double kRight = 20;
constexpr double kRow = 26;
constexpr double kGap = 4;
constexpr double kHeader = 66;
constexpr double kTitle = 30;
constexpr double kLegend = 34;
constexpr double kSlot = 24;
constexpr double kLeastWidth = 640;
constexpr double kMostWidth = 2400;
constexpr double kLeastForNumber = 11;

constexpr std::string_view kStyle =
    "<style>.a{stroke:#fff;stroke-width:.8;rx:2px}.n{text-anchor:middle;font-size:10px;fill:#10222f}"
    ".w{fill:#fff}</style>\n";

class Drawing {
 public:
  Drawing(const Program& program, const Timeline& timeline) : program_(program), timeline_(timeline) {
    std::size_t slots = 1;
    for (const std::vector<Action>& actions : program.ranks) {
      cells_.push_back(cells_of(actions));
      std::erase_if(cells_.back(), [](Cell cell) { return look_of(cell.front().kind) == nullptr; });
      slots = std::max(slots, cells_.back().size());
      if (!actions.empty()) begin_ = std::min(begin_, timeline.spans[cells_.size() - 1].front().start);
    }
    const double body = std::clamp(static_cast<double>(slots) * kSlot, kLeastWidth, kMostWidth);
    slot_ = body / static_cast<double>(slots);
    unit_ = timeline.makespan > 0 ? body / timeline.makespan : 1;
    width_ = kLeft + body + kRight;
  }

  std::string svg() {
    const double rows = static_cast<double>(cells_.size()) * kRow;
    const double height = kHeader + 2 * (kTitle + rows) + kTitle + kLegend;
    body_ = header();
    panel("Device view: what each rank does, in order", kHeader,
          [this](std::size_t rank, std::size_t i, Cell) {
            static_cast<void>(rank);
            return Span{static_cast<double>(i) * slot_, static_cast<double>(i + 1) * slot_};
          });
    const double second = kHeader + kTitle + rows;
    panel("Time: empty is bubble", second, [this](std::size_t rank, std::size_t, Cell cell) {
      const auto index = static_cast<std::size_t>(cell.data() - program_.ranks[rank].data());
      const Span& span = timeline_.spans[rank][index];
      return Span{(span.start - begin_) * unit_, (span.end - begin_) * unit_};
    });
    axis(second + kTitle + rows);
    legend(height - kLegend + 12);
    return text("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", number(width_), "\" height=\"",
                number(height), "\" viewBox=\"0 0 ", number(width_), " ", number(height),
                "\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"11\">\n", kStyle, body_,
                "</svg>\n");
  }

 private:
  std::string header() const {
    const double peak = *std::max_element(timeline_.peak_memory.begin(), timeline_.peak_memory.end());
    const std::string numbers =
        text(program_.ranks.size(), " ranks, ", program_.num_stages, " stages, ", program_.num_microbatches,
             " micro-batches; cost ", number(timeline_.cost), ", bubble ", percent(timeline_.bubble_rate),
             " of the time, at most ", number(peak), " activations on a rank");
    return text("<title>", escaped(program_.name), ": ", numbers, "</title>\n",
                "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n", "<text x=\"", number(kRight),
                "\" y=\"28\" font-size=\"18\" font-weight=\"600\" fill=\"#1d2733\">", escaped(program_.name),
                "</text>\n<text x=\"", number(kRight), "\" y=\"50\" fill=\"#52606d\">", numbers, "</text>\n");
  }

  template <class SpanOf>
  void panel(std::string_view title, double top, const SpanOf& span_of) {
    body_ += text("<text x=\"", number(kRight), "\" y=\"", number(top + 18),
                  "\" font-weight=\"600\" fill=\"#1d2733\">", title, "</text>\n");
    for (std::size_t rank = 0; rank < cells_.size(); ++rank) {
      const double y = top + kTitle + static_cast<double>(rank) * kRow;
      body_ += text("<text x=\"", number(kRight), "\" y=\"", number(y + 15), "\" fill=\"#52606d\">rank ",
                    rank, "</text>\n<rect x=\"", number(kLeft), "\" y=\"", number(y), "\" width=\"",
                    number(width_ - kLeft - kRight), "\" height=\"", number(kRow - kGap),
                    "\" fill=\"#eef1f4\"/>\n");
      for (std::size_t i = 0; i < cells_[rank].size(); ++i) {
        const Span span = span_of(rank, i, cells_[rank][i]);
        box(cells_[rank][i], kLeft + span.start, y, span.end - span.start);
      }
    }
  }

  /// An overlapped pair is two boxes on top of each other.
  void box(Cell cell, double x, double y, double width) {
    const double height = (kRow - kGap) / static_cast<double>(cell.size());
    for (std::size_t part = 0; part < cell.size(); ++part) {
      const Action& action = cell[part];
      const Look& look = *look_of(action.kind);
      const bool first_chunk = action.stage < static_cast<int>(program_.ranks.size());
      const double top = y + static_cast<double>(part) * height;
      const double drawn = std::max(width, 1.5);
      body_ += text("<rect class=\"a\" x=\"", number(x), "\" y=\"", number(top), "\" width=\"", number(drawn),
                    "\" height=\"", number(height), "\" fill=\"", first_chunk ? look.light : look.dark,
                    "\"><title>", to_text(action), "</title></rect>\n");
      if (action.microbatch < 0 || drawn < kLeastForNumber) continue;
      body_ += text("<text class=\"", first_chunk ? "n" : "n w", "\" x=\"", number(x + drawn / 2), "\" y=\"",
                    number(top + height / 2 + 3.5), "\">", action.microbatch, "</text>\n");
    }
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
    if (!chunks) return;
    body_ += text("<text x=\"", number(x), "\" y=\"", number(y + 10),
                  "\" fill=\"#52606d\">light: a rank's first chunk, dark: later ones</text>\n");
  }

  void swatch(double x, double y, std::string_view colour) {
    body_ += text("<rect x=\"", number(x), "\" y=\"", number(y),
                  "\" width=\"12\" height=\"12\" rx=\"2\" fill=\"", colour, "\"/>\n");
  }

  const Program& program_;
  const Timeline& timeline_;
  std::vector<std::vector<Cell>> cells_;
  double begin_ = 0;
  double slot_ = 1, unit_ = 1, width_ = 0;
  std::string body_;
};

}  // namespace

std::string to_svg(const Program& program, const Timeline& timeline) {
  return Drawing(program, timeline).svg();
}

}  // namespace trireme::schedule
