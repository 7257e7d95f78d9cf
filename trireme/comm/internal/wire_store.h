#pragma once
// The store of the world as a c10d::Store. Every call ends by the timeout of the store
// (c10d::Store::setTimeout), also when the server is frozen or cut off. Thread-safe, but for setTimeout.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trireme/wire/store_client.h"

namespace trireme::comm {

class WireStore : public c10d::Store {
 public:
  /// Connects; throws the exceptions of wire::StoreClient.
  explicit WireStore(const wire::StoreClientOptions& options);

  c10::intrusive_ptr<c10d::Store> clone() override;
  using Store::compareSet;
  using Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& value) override;
  /// Waits for the key. Throws CommError when it is not there by the timeout.
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t number) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  /// Throws CommError that names the keys when they are not all there by the timeout.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  /// Closes the connection until the next call.
  void disconnect() { client_.disconnect(); }

 private:
  double timeout_s() const { return static_cast<double>(timeout_.count()) / 1000; }
  wire::StoreClient client_;
};

}  // namespace trireme::comm
