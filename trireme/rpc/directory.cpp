#include "trireme/rpc/directory.h"

namespace trireme::rpc {

StoreDirectory::StoreDirectory(const wire::StoreClientOptions& options)
    : client_(options), timeout_s_(options.timeout_s) {}

std::int64_t StoreDirectory::add(const std::string& key, std::int64_t number) {
  return client_.add(key, number, timeout_s_);
}
void StoreDirectory::set(const std::string& key, const std::string& value) {
  client_.set(key, value, timeout_s_);
}
std::optional<std::string> StoreDirectory::get(const std::string& key) {
  return client_.get(key, timeout_s_);
}
std::string StoreDirectory::replace(const std::string& key, const std::string& expected,
                                    const std::string& value) {
  return client_.compare_set(key, expected, value, timeout_s_);
}

std::int64_t LocalDirectory::add(const std::string& key, std::int64_t number) {
  const std::lock_guard lock(mutex_);
  std::string& value = values_[key];
  const std::int64_t sum = (value.empty() ? 0 : std::stoll(value)) + number;
  value = std::to_string(sum);
  return sum;
}
void LocalDirectory::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  values_[key] = value;
}
std::optional<std::string> LocalDirectory::get(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}
std::string LocalDirectory::replace(const std::string& key, const std::string& expected,
                                    const std::string& value) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end() && expected.empty()) return values_[key] = value;
  if (found == values_.end()) return "";
  if (found->second == expected) found->second = value;
  return found->second;
}

}  // namespace trireme::rpc
