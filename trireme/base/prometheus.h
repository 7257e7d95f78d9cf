#pragma once
// Metrics as text that Prometheus reads: its text exposition format, version 0.0.4. A value.

#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace trireme {

/// Content type of the text in HTTP.
inline constexpr const char* kPrometheusType = "text/plain; version=0.0.4; charset=utf-8";

class PrometheusText {
 public:
  static constexpr const char* kCounter = "counter";
  static constexpr const char* kGauge = "gauge";
  /// Names and values, in the order in which they are written.
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  /// `prefix`: of all names, "trireme_ps_".
  explicit PrometheusText(std::string prefix) : prefix_(std::move(prefix)) {}

  /// A metric, whose values follow.
  void begin(std::string_view name, std::string_view type, std::string_view help) {
    name_ = prefix_ + std::string(name);
    out_ << "# HELP " << name_ << " " << help << "\n# TYPE " << name_ << " " << type << "\n";
  }
  /// Of the metric that was begun last, which `suffix` may continue.
  template <class Number>
  void value(Labels labels, const Number& number, std::string_view suffix = "") {
    out_ << name_ << suffix;
    const char* before = "{";
    for (const auto& [label, of] : labels) {
      out_ << before << label << "=\"" << escaped(of) << "\"";
      before = ",";
    }
    out_ << (labels.size() == 0 ? "" : "}") << " " << number << "\n";
  }
  /// A metric of one value.
  template <class Number>
  void one(std::string_view name, std::string_view type, std::string_view help, const Number& number) {
    begin(name, type, help);
    value({}, number);
  }
  std::string take() { return std::move(out_).str(); }

 private:
  /// Of a label: a backslash, a quote and an end of line are written with a backslash.
  static std::string escaped(std::string_view value) {
    std::string result;
    for (const char c : value) {
      if (c == '\n') {
        result += "\\n";
        continue;
      }
      if (c == '\\' || c == '"') result += '\\';
      result += c;
    }
    return result;
  }

  const std::string prefix_;
  std::ostringstream out_;
  std::string name_;
};

}  // namespace trireme
