// The network as a figure: members on a circle, links as lines. Faster links are darker and wider.

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <numbers>
#include <sstream>
#include <vector>

#include "cli/topology/report.h"
#include "trireme/base/text.h"
#include "trireme/telemetry/page_text.h"

namespace trireme::cli {
namespace {

using topology::Link;

constexpr double kMargin = 110;
constexpr double kBoxWidth = 150;
constexpr double kBoxHeight = 44;
constexpr double kLetterWidth = 6.5;
constexpr double kWordsHeight = 15;
// With more members the labels of lines would overlap. The table has these numbers.
constexpr int kMaxWithWords = 8;

std::string number(double value) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << value;
  return std::move(out).str();
}

class Figure {
 public:
  explicit Figure(const TopologyReport& report)
      : report_(report),
        by_rank_(report.table.num_hosts() == 1),
        members_(by_rank_ ? report.table.num_ranks() : report.table.num_hosts()),
        radius_(members_ == 1 ? 0 : std::max(150.0, 30.0 * members_)),
        middle_(radius_ + kMargin) {}

  std::string svg() const {
    std::string lines, boxes, words;
    std::vector<Place> places;
    for (int i = 0; i < members_; ++i) {
      boxes += box(i);
      places.push_back({at(i), kBoxWidth, kBoxHeight});
    }
    for (int a = 0; a < members_; ++a) {
      for (int b = a + 1; b < members_; ++b) lines += line(a, b);
    }
    if (members_ <= kMaxWithWords) {
      for (const Words& each : words_beside(places)) words += text_of(each);
    }
    const std::string side = number(2 * middle_);
    return text("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", side, "\" height=\"", side,
                "\" viewBox=\"0 0 ", side, " ", side,
                "\" font-family=\"sans-serif\" font-size=\"12\" text-anchor=\"middle\">\n"
                "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
                lines, boxes, words, "</svg>\n");
  }

 private:
  struct Point {
    double x, y;
  };
  struct Place {
    Point middle;
    double width, height;
  };
  static double common_area(const Place& a, const Place& b) {
    const double width = (a.width + b.width) / 2 - std::abs(a.middle.x - b.middle.x);
    const double height = (a.height + b.height) / 2 - std::abs(a.middle.y - b.middle.y);
    return std::max(0.0, std::min({width, a.width, b.width})) *
           std::max(0.0, std::min({height, a.height, b.height}));
  }
  Point at(int member) const {
    const double angle = 2 * std::numbers::pi * member / members_ - std::numbers::pi / 2;
    return {middle_ + radius_ * std::cos(angle), middle_ + radius_ * std::sin(angle)};
  }
  /// The slower direction.
  Link link(int a, int b) const {
    const auto one_way = [&](int from, int to) {
      return by_rank_ ? report_.table.link(from, to) : between_hosts(report_.table, from, to);
    };
    const Link there = one_way(a, b);
    const Link back = one_way(b, a);
    return {std::max(there.alpha_s, back.alpha_s), std::min(there.bytes_per_s, back.bytes_per_s)};
  }
  std::string line(int a, int b) const {
    const Link found = link(a, b);
    // From 1 MB/s to 10 GB/s on a logarithmic scale.
    const double share = std::clamp((std::log10(found.bytes_per_s) - 6) / 4, 0.0, 1.0);
    const Point from = at(a), to = at(b);
    return text("<line x1=\"", number(from.x), "\" y1=\"", number(from.y), "\" x2=\"", number(to.x),
                "\" y2=\"", number(to.y), "\" stroke=\"#2b6cb0\" stroke-opacity=\"",
                number(0.2 + 0.7 * share), "\" stroke-width=\"", number(1 + 5 * share), "\"><title>", a,
                " - ", b, ": ", words_of(found), "</title></line>\n");
  }
  static std::string words_of(const Link& link) {
    return text(seconds_text(link.alpha_s), ", ", rate_text(link.bytes_per_s));
  }
  struct Words {
    std::string words;
    Point from, to;
    Place place;
  };
  /// Places labels where they cover the least of `boxes` and of other labels. Runs twice over all labels, as
  /// later ones may leave no other place for some lines.
  std::vector<Words> words_beside(const std::vector<Place>& boxes) const {
    std::vector<Words> all;
    for (int a = 0; a < members_; ++a) {
      for (int b = a + 1; b < members_; ++b) {
        all.push_back({words_of(link(a, b)), at(a), at(b), {}});
        place_best(all.back(), boxes, all);
      }
    }
    for (Words& each : all) place_best(each, boxes, all);
    return all;
  }
  static void place_best(Words& words, const std::vector<Place>& boxes, const std::vector<Words>& all) {
    double least = std::numeric_limits<double>::infinity();
    const Point from = words.from, to = words.to;
    Place best{};
    for (const double share : {0.5, 0.42, 0.58, 0.36, 0.64, 0.3, 0.7, 0.24, 0.76}) {
      const Place place{{from.x + (to.x - from.x) * share, from.y + (to.y - from.y) * share},
                        kLetterWidth * static_cast<double>(words.words.size()),
                        kWordsHeight};
      double covered = 0;
      for (const Place& each : boxes) covered += common_area(place, each);
      for (const Words& each : all) covered += &each == &words ? 0 : common_area(place, each.place);
      if (covered >= least) continue;
      least = covered;
      best = place;
    }
    words.place = best;
  }
  static std::string text_of(const Words& words) {
    return text("<text x=\"", number(words.place.middle.x), "\" y=\"", number(words.place.middle.y + 4),
                "\" fill=\"#1d2733\" stroke=\"#ffffff\" stroke-width=\"4\" paint-order=\"stroke\">",
                words.words, "</text>\n");
  }
  std::string box(int member) const {
    const Point where = at(member);
    const HostHardware& host = report_.hosts[by_rank_ ? 0 : static_cast<std::size_t>(member)];
    const std::string title = by_rank_ ? text("rank ", member) : text(member, ": ", host.name);
    const auto ranks = std::ranges::count(report_.table.host_of, member);
    const std::string below = by_rank_ ? host.name : text(ranks, " ranks, ", host.usable, " cores");
    return text("<rect x=\"", number(where.x - kBoxWidth / 2), "\" y=\"", number(where.y - kBoxHeight / 2),
                "\" width=\"", number(kBoxWidth), "\" height=\"", number(kBoxHeight),
                "\" rx=\"6\" fill=\"#edf2f7\" stroke=\"#52606d\"/>\n<text x=\"", number(where.x), "\" y=\"",
                number(where.y - 4), "\" font-weight=\"600\">", telemetry::escape_html(title),
                "</text>\n<text x=\"", number(where.x), "\" y=\"", number(where.y + 13),
                "\" fill=\"#52606d\">", telemetry::escape_html(below), "</text>\n");
  }

  const TopologyReport& report_;
  const bool by_rank_;
  const int members_;
  const double radius_, middle_;
};

}  // namespace

std::string to_svg(const TopologyReport& report) { return Figure(report).svg(); }

}  // namespace trireme::cli
