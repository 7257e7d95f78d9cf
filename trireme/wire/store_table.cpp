#include "trireme/wire/internal/store_table.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "trireme/base/text.h"

namespace trireme::wire::store {
namespace {

Reply answer(bool yes) { return {.kind = yes ? Reply::Kind::kYes : Reply::Kind::kNo}; }

}  // namespace

std::optional<Reply> StoreTable::apply(int client, const Request& request) {
  switch (request.action) {
    case Action::kSet:
      put(request.keys[0], request.value);
      return answer(true);
    case Action::kGet: {
      const auto found = values_.find(request.keys[0]);
      if (found == values_.end()) return answer(false);
      return Reply{.kind = Reply::Kind::kYes, .value = found->second};
    }
    case Action::kAdd:
      return add(request.keys[0], request.number);
    case Action::kCheck:
      return answer(first_missing(request.keys) == nullptr);
    case Action::kCompareSet:
      return compare_set(request);
    case Action::kDelete:
      return answer(values_.erase(request.keys[0]) > 0);
    case Action::kCount:
      return Reply{.kind = Reply::Kind::kYes, .number = static_cast<std::int64_t>(values_.size())};
    case Action::kWait:
      break;
  }
  if (first_missing(request.keys) == nullptr) return answer(true);
  if (request.number <= 0) return answer(false);
  const double wait_s = static_cast<double>(std::min<std::int64_t>(request.number, 1000000000)) / 1000;
  waits_.insert_or_assign(client, Wait{request.keys, Deadline::after_s(wait_s)});
  go_on_waiting(client);
  return std::nullopt;
}

Reply StoreTable::add(const std::string& key, std::int64_t number) {
  std::int64_t sum = 0;
  const auto found = values_.find(key);
  if (found != values_.end()) {
    const std::string& held = found->second;
    const auto [end, error] = std::from_chars(held.data(), held.data() + held.size(), sum);
    if (error != std::errc() || end != held.data() + held.size()) {
      return {.kind = Reply::Kind::kError, .value = "holds no number"};
    }
  }
  // Wraps around, like the processor's integers.
  sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) + static_cast<std::uint64_t>(number));
  put(key, std::to_string(sum));
  return {.kind = Reply::Kind::kYes, .number = sum};
}

// As in c10d: a missing key is set if the expected value is empty. Otherwise the reply is the expected value.
Reply StoreTable::compare_set(const Request& request) {
  const auto found = values_.find(request.keys[0]);
  const std::string_view held = found == values_.end() ? std::string_view() : found->second;
  if (held != request.expected)
    return {.kind = Reply::Kind::kNo, .value = found == values_.end() ? request.expected : held};
  put(request.keys[0], request.value);
  return {.kind = Reply::Kind::kYes, .value = request.value};
}

void StoreTable::put(const std::string& key, std::string_view value) {
  values_[key] = value;
  std::vector<int> woken;
  const auto [begin, end] = waiting_for_.equal_range(key);
  for (auto each = begin; each != end; ++each) woken.push_back(each->second);
  waiting_for_.erase(begin, end);
  for (const int client : woken) go_on_waiting(client);
}

const std::string* StoreTable::first_missing(const std::vector<std::string>& keys) const {
  const auto missing =
      std::find_if(keys.begin(), keys.end(), [&](const auto& key) { return !values_.contains(key); });
  return missing == keys.end() ? nullptr : &*missing;
}

void StoreTable::go_on_waiting(int client) {
  const auto wait = waits_.find(client);
  if (const std::string* missing = first_missing(wait->second.keys)) {
    waiting_for_.emplace(*missing, client);
    return;
  }
  waits_.erase(wait);
  replies_.emplace_back(client, answer(true));
}

std::vector<std::pair<int, Reply>> StoreTable::take_replies() {
  std::vector<int> late;
  for (const auto& [client, wait] : waits_) {
    if (wait.deadline.expired()) late.push_back(client);
  }
  for (const int client : late) {
    forget(client);
    replies_.emplace_back(client, answer(false));
  }
  return std::exchange(replies_, {});
}

void StoreTable::forget(int client) {
  if (waits_.erase(client) == 0) return;
  std::erase_if(waiting_for_, [&](const auto& each) { return each.second == client; });
}

}  // namespace trireme::wire::store
