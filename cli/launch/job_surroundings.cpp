#include "cli/launch/job_surroundings.h"

#include <thread>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/etcd/job_leadership.h"
#include "trireme/wire/store_server.h"

namespace trireme::cli {
namespace {

class NetworkStore : public JobStore {
 public:
  explicit NetworkStore(const wire::StoreClientOptions& options) : client_(options) {}

  const wire::Endpoint& endpoint() const override { return client_.options().endpoint; }
  void set(const std::string& key, const std::string& value, double timeout_s) override {
    client_.set(key, value, timeout_s);
  }
  std::optional<std::string> get(const std::string& key, double timeout_s) override {
    return client_.get(key, timeout_s);
  }
  std::int64_t add(const std::string& key, std::int64_t number, double timeout_s) override {
    return client_.add(key, number, timeout_s);
  }
  bool check(const std::string& key, double timeout_s) override { return client_.check({key}, timeout_s); }
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& value,
                          double timeout_s) override {
    return client_.compare_set(key, expected, value, timeout_s);
  }

 private:
  wire::StoreClient client_;
};

class NetworkServer : public ServedStore {
 public:
  NetworkServer(const wire::Endpoint& endpoint, wire::StoreServerOptions options)
      : server_(wire::listen_at(endpoint), std::move(options)) {}
  wire::Endpoint endpoint() const override { return server_.endpoint(); }

 private:
  wire::StoreServer server_;
};

class EtcdElection : public JobElection {
 public:
  explicit EtcdElection(etcd::JobLeadershipOptions options) : leadership_(std::move(options)) {}

  int claim_number() override { return leadership_.claim_number(); }
  std::string agree(const std::string& name, const std::string& value) override {
    return leadership_.agree(name, value);
  }
  void campaign(const wire::Address& address) override { leadership_.campaign(address); }
  void stand_down() override { leadership_.stand_down(); }
  std::int64_t term() const override { return leadership_.term(); }
  wire::Address leader() const override { return leadership_.leader(); }
  std::optional<std::string> load() override { return leadership_.load(); }
  void save(const std::string& record) override { leadership_.save(record); }
  void end(const std::string& how) override { leadership_.end(how); }
  std::optional<std::string> last_end() override { return leadership_.last_end(); }

 private:
  etcd::JobLeadership leadership_;
};

class RealSurroundings : public JobSurroundings {
 public:
  double now_s() override { return trireme::now_s(); }
  void sleep(double seconds) override { std::this_thread::sleep_for(Seconds(seconds)); }
  std::unique_ptr<JobStore> connect(const wire::StoreClientOptions& store) override {
    return std::make_unique<NetworkStore>(store);
  }
  bool listens(const wire::Endpoint& endpoint, double timeout_s) override {
    return wire::try_connect(endpoint, Deadline::after_s(timeout_s)).has_value();
  }
  std::unique_ptr<ServedStore> serve(const wire::Endpoint& endpoint, const wire::Secret& secret,
                                     const Note& complain) override {
    return std::make_unique<NetworkServer>(endpoint,
                                           wire::StoreServerOptions{.secret = secret, .complain = complain});
  }
  std::unique_ptr<JobElection> election(const wire::Address& store, const Note& trouble) override {
    return std::make_unique<EtcdElection>(etcd::JobLeadershipOptions{.store = store, .trouble = trouble});
  }
};

}  // namespace

JobSurroundings& real_surroundings() {
  static RealSurroundings surroundings;
  return surroundings;
}

}  // namespace trireme::cli
