#include "trireme/base/text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <sstream>

#include "trireme/base/printable.h"

namespace trireme {
namespace {

/// The edit distance, or `most` if it is not less.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t most) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    std::size_t least = row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min(substitute, std::min(row[j], row[j - 1]) + 1);
      least = std::min(least, row[j]);
    }
    if (least >= most) return most;
  }
  return std::min(row.back(), most);
}

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), pattern, values...);
  return buffer.data();
}

}  // namespace

TextPart::TextPart(const char* words)
    : value_(words),
      write_([](std::ostream& out, const TextPart& part) { out << static_cast<const char*>(part.value_); }) {}

TextPart::TextPart(std::ios_base& (*manipulator)(std::ios_base&))
    : manipulator_(manipulator),
      write_([](std::ostream& out, const TextPart& part) { part.manipulator_(out); }) {}

std::string text_of(std::initializer_list<TextPart> parts) {
  std::ostringstream out;
  for (const TextPart& part : parts) part.write(out);
  return std::move(out).str();
}

std::string join(std::span<const std::string> words, std::string_view separator) {
  std::string joined;
  for (const auto& word : words) {
    if (&word != &words.front()) joined += separator;
    joined += word;
  }
  return joined;
}

std::vector<std::string> split(std::string_view line, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const auto end = line.find(separator);
    parts.emplace_back(line.substr(0, end));
    if (end == std::string_view::npos) return parts;
    line.remove_prefix(end + 1);
  }
}

std::string_view trim(std::string_view line) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto begin = line.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(kSpace) - begin + 1);
}

std::string nearest(std::string_view word, std::span<const std::string> known) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const auto& candidate : known) {
    const std::size_t least =
        std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size());
    if (least >= best_distance) continue;  // saves the cost of long words
    const std::size_t distance = edit_distance(word, candidate, best_distance);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string suggest(std::string_view word, std::span<const std::string> known) {
  const std::string near = nearest(word, known);
  if (!near.empty()) return " (did you mean '" + printable(near) + "'?)";
  constexpr std::size_t kSome = 64;
  std::vector<std::string> some;
  for (const std::string& each : known.first(std::min(known.size(), kSome))) some.push_back(printable(each));
  const std::string rest = known.size() > kSome ? text(", ...: ", kSome, " of ", known.size()) : "";
  return " (known: " + join(some) + rest + ")";
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return text(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return format("%.1f %s", value, kUnits[unit]);
}

std::string human_duration(double seconds) {
  if (seconds < 1e-3) return format("%.0f us", seconds * 1e6);
  if (seconds < 1) return format("%.0f ms", seconds * 1e3);
  if (seconds < 60) return format("%.1f s", seconds);
  if (!(seconds < 1e15)) return "unlimited time";
  const auto whole = static_cast<long long>(seconds);
  if (whole < 3600) return format("%lldm %02llds", whole / 60, whole % 60);
  return format("%lldh %02lldm", whole / 3600, whole / 60 % 60);
}

}  // namespace trireme
