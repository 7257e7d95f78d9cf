#pragma once
// Clock, stores and election that the launchers of an elastic job use. Real ones come from
// real_surroundings(). Tests have simulated ones with a virtual clock.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "trireme/wire/node.h"
#include "trireme/wire/store_client.h"

namespace trireme::cli {

/// A connection to the store of a job. Calls are those of wire::StoreClient, and throw CommError.
class JobStore {
 public:
  virtual ~JobStore() = default;
  virtual const wire::Endpoint& endpoint() const = 0;
  virtual void set(const std::string& key, const std::string& value, double timeout_s) = 0;
  virtual std::optional<std::string> get(const std::string& key, double timeout_s) = 0;
  virtual std::int64_t add(const std::string& key, std::int64_t number, double timeout_s) = 0;
  virtual bool check(const std::string& key, double timeout_s) = 0;
  virtual std::string compare_set(const std::string& key, const std::string& expected,
                                  const std::string& value, double timeout_s) = 0;
};

/// A store that this launcher serves, as long as this value lives.
class ServedStore {
 public:
  virtual ~ServedStore() = default;
  virtual wire::Endpoint endpoint() const = 0;
};

/// Leader election and the record of the job. Calls are those of etcd::JobLeadership.
class JobElection {
 public:
  virtual ~JobElection() = default;
  virtual int claim_number() = 0;
  virtual std::string agree(const std::string& name, const std::string& value) = 0;
  virtual void campaign(const wire::Address& address) = 0;
  virtual void stand_down() = 0;
  virtual std::int64_t term() const = 0;
  virtual wire::Address leader() const = 0;
  virtual std::optional<std::string> load() = 0;
  virtual void save(const std::string& record) = 0;
  virtual void end(const std::string& how) = 0;
  virtual std::optional<std::string> last_end() = 0;
};

class JobSurroundings {
 public:
  /// For the launcher's output, from any thread.
  using Note = std::function<void(const std::string&)>;

  virtual ~JobSurroundings() = default;
  /// Seconds on a monotonic clock.
  virtual double now_s() = 0;
  virtual void sleep(double seconds) = 0;
  /// Throws wire::NobodyServes, CommError, InvalidArgument.
  virtual std::unique_ptr<JobStore> connect(const wire::StoreClientOptions& store) = 0;
  /// Whether a process listens there, asked for `timeout_s` at most.
  virtual bool listens(const wire::Endpoint& endpoint, double timeout_s) = 0;
  /// Throws CommError.
  virtual std::unique_ptr<ServedStore> serve(const wire::Endpoint& endpoint, const wire::Secret& secret,
                                             const Note& complain) = 0;
  /// `store`: etcd://...; throws InvalidArgument.
  virtual std::unique_ptr<JobElection> election(const wire::Address& store, const Note& trouble) = 0;
};

/// Of this process: its clock, the network, and etcd.
JobSurroundings& real_surroundings();

}  // namespace trireme::cli
