#include "trireme/telemetry/page_text.h"

#include <cmath>
#include <cstdio>
#include <ctime>

namespace trireme::telemetry {
namespace {

std::string significant(double value, int digits) {
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, "%.*g", digits, value);
  std::string written = buffer;
  // "1e-05" -> "1e-5"
  const auto e = written.find('e');
  if (e == std::string::npos || e + 2 >= written.size()) return written;
  while (e + 3 < written.size() && written[e + 2] == '0') written.erase(e + 2, 1);
  if (written[e + 1] == '+') written.erase(e + 1, 1);
  return written;
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string short_number(double value, int digits) {
  if (value == 0) return "0";  // also for -0
  const double size = std::abs(value);
  if (size >= 1e15 || !std::isfinite(value)) return significant(value, digits);
  if (size >= 1e9) return significant(value / 1e9, digits) + "G";
  if (size >= 1e6) return significant(value / 1e6, digits) + "M";
  if (size >= 1e4) return significant(value / 1e3, digits) + "k";
  return significant(value, digits);
}

std::string calendar_time(std::int64_t unix_s) {
  const std::time_t time = unix_s;
  std::tm parts{};
  ::localtime_r(&time, &parts);
  char buffer[32];
  std::strftime(buffer, sizeof buffer, "%Y-%m-%d %H:%M", &parts);
  return buffer;
}

}  // namespace trireme::telemetry
