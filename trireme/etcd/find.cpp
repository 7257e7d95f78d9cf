#include "trireme/etcd/find.h"

#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "trireme/etcd/internal/client.h"
#include "trireme/etcd/internal/keys.h"
#include "trireme/etcd/store_address.h"

namespace trireme::etcd {
namespace {

constexpr double kBetweenLooks_s = 0.25;

wire::Address leader_of(const StoreAddress& store, Client& client) {
  const auto leader = client.get(leader_key(store.prefix));
  if (!leader)
    throw CommError(text("no coordinator leads in ", store.text(),
                         " now: see that a coordinator runs with this address; another try may find it"));
  return leader->value;
}

/// Repeated look-ups, with a pause between two look-ups of one address.
class Finder {
 public:
  wire::Address find(const wire::Address& address) {
    const std::lock_guard lock(mutex_);
    auto& known = known_[address];
    if (!known) {
      StoreAddress store = StoreAddress::parse(address);
      Client client(store.members);
      known = std::make_unique<Known>(Known{std::move(store), std::move(client)});
    }
    std::this_thread::sleep_for(Seconds(known->next_s - now_s()));
    known->next_s = now_s() + kBetweenLooks_s;
    return leader_of(known->store, known->client);
  }

 private:
  struct Known {
    StoreAddress store;
    Client client;
    double next_s = 0;
  };
  std::mutex mutex_;
  std::map<wire::Address, std::unique_ptr<Known>> known_;
};

}  // namespace

wire::Address find_coordinator(const wire::Address& address) {
  const StoreAddress store = StoreAddress::parse(address);
  Client client(store.members);
  return leader_of(store, client);
}

std::function<wire::Address(const wire::Address&)> look_up_in_etcd() {
  return
      [finder = std::make_shared<Finder>()](const wire::Address& address) { return finder->find(address); };
}

}  // namespace trireme::etcd
