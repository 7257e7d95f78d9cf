#include "cli/numbers.h"

#include <charconv>
#include <cmath>

#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

/// Accepts numbers for which `holds` is true; `what` names them in the error.
CLI::Validator numbers(const char* what, bool (*holds)(double)) {
  return {[=](const std::string& given) {
            double number = 0;
            const auto end = given.data() + given.size();
            const auto [stopped, error] = std::from_chars(given.data(), end, number);
            const bool is_one =
                error == std::errc() && stopped == end && std::isfinite(number) && holds(number);
            return is_one ? std::string() : text("'", given, "' is no ", what);
          },
          ""};
}

}  // namespace

CLI::Validator above_zero() {
  return numbers("number above 0", [](double number) { return number > 0; });
}

CLI::Validator zero_or_more() {
  return numbers("number of 0 or more", [](double number) { return number >= 0; });
}

CLI::Validator share() {
  return numbers("number from 0 to 1", [](double number) { return number >= 0 && number <= 1; });
}

}  // namespace trireme::cli
