#include "trireme/comm/internal/wire_store.h"

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

WireStore::WireStore(const wire::StoreClientOptions& options)
    : Store(whole_milliseconds(options.timeout_s)), client_(options) {}

c10::intrusive_ptr<c10d::Store> WireStore::clone() {
  auto copy = c10::make_intrusive<WireStore>(client_.options());
  copy->setTimeout(timeout_);
  return copy;
}

void WireStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  client_.set(key, text_of(value), timeout_s());
}

std::vector<std::uint8_t> WireStore::compareSet(const std::string& key,
                                                const std::vector<std::uint8_t>& expected,
                                                const std::vector<std::uint8_t>& value) {
  return bytes_of(client_.compare_set(key, text_of(expected), text_of(value), timeout_s()));
}

std::vector<std::uint8_t> WireStore::get(const std::string& key) {
  // Most keys exist: one message instead of two.
  auto value = client_.get(key, timeout_s());
  if (!value) {
    wait({key});
    value = client_.get(key, timeout_s());
  }
  if (!value) throw CommError(text("key '", key, "' was taken out of the store while it was read"));
  return bytes_of(*value);
}

std::int64_t WireStore::add(const std::string& key, std::int64_t number) {
  return client_.add(key, number, timeout_s());
}

bool WireStore::deleteKey(const std::string& key) { return client_.remove(key, timeout_s()); }
bool WireStore::check(const std::vector<std::string>& keys) { return client_.check(keys, timeout_s()); }
std::int64_t WireStore::getNumKeys() { return client_.num_keys(timeout_s()); }
void WireStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void WireStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const double wait_s = static_cast<double>(timeout.count()) / 1000;
  if (client_.wait(keys, wait_s)) return;
  throw CommError(text("no rank has put ", trireme::join(keys), " into the store at ",
                       client_.options().endpoint.text(), " within ", human_duration(wait_s)));
}

}  // namespace trireme::comm
