#pragma once
// Words and numbers for pages that people read. Pure functions.

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::telemetry {

/// The text with & < > " ' written such that HTML and SVG show them, also inside an attribute.
std::string escape_html(std::string_view text);

/// "0.9122", "1876", "12.5k", "3.1M", "2e-9": at most `digits` significant ones.
std::string short_number(double value, int digits = 4);

/// "2026-11-21 10:31" in the zone of this process, from seconds since 1970.
std::string calendar_time(std::int64_t unix_s);

}  // namespace trireme::telemetry
