#pragma once
// Where workers find each other: a store of the ranks of a world, or of one process. Implementations are
// thread-safe; calls may wait, and throw CommError when the store does not answer.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "trireme/wire/store_client.h"

namespace trireme::rpc {

class Directory {
 public:
  virtual ~Directory() = default;
  /// The sum; a missing key counts as 0.
  virtual std::int64_t add(const std::string& key, std::int64_t number) = 0;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
  /// Sets it if it is `expected` (empty: or not there). Returns the value afterwards.
  virtual std::string replace(const std::string& key, const std::string& expected,
                              const std::string& value) = 0;
};

/// Served by a wire::StoreServer: the one of a world, or one of its own.
class StoreDirectory final : public Directory {
 public:
  /// Throws as wire::StoreClient does.
  explicit StoreDirectory(const wire::StoreClientOptions& options);
  std::int64_t add(const std::string& key, std::int64_t number) override;
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key) override;
  std::string replace(const std::string& key, const std::string& expected, const std::string& value) override;

 private:
  wire::StoreClient client_;
  const double timeout_s_;
};

/// For workers that are threads of one process.
class LocalDirectory final : public Directory {
 public:
  std::int64_t add(const std::string& key, std::int64_t number) override;
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key) override;
  std::string replace(const std::string& key, const std::string& expected, const std::string& value) override;

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

}  // namespace trireme::rpc
