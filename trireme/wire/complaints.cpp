#include "trireme/wire/internal/complaints.h"

#include "trireme/base/text.h"

namespace trireme::wire {
namespace {

constexpr int kFirst = 10;  // lines that are written before the others are only counted

}  // namespace

std::optional<std::string> Complaints::add(const std::string& line, const std::string& peer, double now_s) {
  if (num_counted_ == 0 && now_s - last_written_s_ >= every_s_) num_written_ = 0;
  if (num_counted_ == 0 && num_written_ < kFirst) {
    ++num_written_;
    last_written_s_ = now_s;
    return line;
  }
  if (num_counted_++ == 0) counts_from_s_ = now_s;
  last_peer_ = peer;
  return std::nullopt;
}

std::optional<double> Complaints::due_s() const {
  return num_counted_ > 0 ? std::optional(counts_from_s_ + every_s_) : std::nullopt;
}

std::optional<std::string> Complaints::take_count(double now_s) {
  const auto due = due_s();
  if (!due || now_s < *due) return std::nullopt;
  last_written_s_ = now_s;
  return count(every_s_ == 60 ? " in the last minute" : " in the last " + human_duration(every_s_));
}

std::optional<std::string> Complaints::take_rest() { return num_counted_ > 0 ? count("") : std::nullopt; }

std::optional<std::string> Complaints::count(const std::string& in_what_time) {
  const long long counted = std::exchange(num_counted_, 0);
  return text(where_, counted, counted == 1 ? " more connection was" : " more connections were", " rejected",
              in_what_time, ", last from ", last_peer_);
}

}  // namespace trireme::wire
