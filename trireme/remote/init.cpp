#include "trireme/remote/init.h"

#include <cstdlib>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::remote {
namespace {

std::vector<std::uint8_t> bytes_of(const std::string& value) { return {value.begin(), value.end()}; }
std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

/// The store of a world, which the context keeps.
class WorldDirectory final : public rpc::Directory {
 public:
  explicit WorldDirectory(c10d::Store& store) : store_(store) {}
  std::int64_t add(const std::string& key, std::int64_t number) override { return store_.add(key, number); }
  void set(const std::string& key, const std::string& value) override { store_.set(key, bytes_of(value)); }
  std::optional<std::string> get(const std::string& key) override {
    if (!store_.check({key})) return std::nullopt;
    return text_of(store_.get(key));
  }
  std::string replace(const std::string& key, const std::string& expected,
                      const std::string& value) override {
    return text_of(store_.compareSet(key, bytes_of(expected), bytes_of(value)));
  }

 private:
  c10d::Store& store_;
};

std::optional<std::string> variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

std::shared_ptr<rpc::Agent> init(comm::Context& context, const std::string& name, rpc::AgentOptions options) {
  const auto& environment = context.environment();
  options.name = name;
  options.directory = std::make_shared<WorldDirectory>(context.store());
  options.trace = context.trace();
  options.num_workers = static_cast<std::size_t>(context.world_size());
  if (!environment.secret.empty())
    options.security = wire::Security::with_secret(environment.secret, wire::is_encrypted(variable));
  const wire::Endpoint meeting{environment.master_addr, environment.master_port};
  if (!environment.one_host && context.world_size() > 1 && !wire::is_loopback(meeting)) {
    const std::string host = wire::local_address_towards(meeting);
    options.listen = {text("tcp:", wire::Endpoint{host, 0}.text())};
  }
  return join(std::move(options));
}

}  // namespace trireme::remote
