#pragma once
// The implementation of a NodeLoop: its channels, listeners and timers around one epoll descriptor, and the
// node's view of them. Everything but post(), post_or_run(), stop() and counts() belongs to the thread with
// the turn: the thread in run(), and while that sleeps, one that has work.

#include <sys/epoll.h>

#include <atomic>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "trireme/wire/folder_disk.h"
#include "trireme/wire/internal/channel.h"
#include "trireme/wire/internal/complaints.h"
#include "trireme/wire/internal/listener.h"
#include "trireme/wire/internal/timers.h"
#include "trireme/wire/node_loop.h"

namespace trireme::wire {

class NodeLoop::Impl final : public Surroundings, public Network, private ChannelOwner {
 public:
  explicit Impl(NodeLoopOptions options);
  ~Impl() override;

  const std::vector<Address>& addresses() const { return addresses_; }
  void run(Node& node);
  void stop();
  void post(std::function<void()> work) override;
  void post_or_run(std::function<void()> work);
  ChannelCounts counts() const;

  std::int64_t now_ns() const override { return trireme::now_ns(); }
  std::uint64_t random() override { return random_(); }
  TimerId start_timer(double after_s) override;
  void stop_timer(TimerId timer) override { timers_.stop(timer); }
  Network& network() override { return *this; }
  Disk& disk() override;
  void report(const std::string& line) override;

  ConnectionId connect(const Address& address) override;
  void send(ConnectionId connection, Message message) override;
  std::size_t waiting_bytes(ConnectionId connection) const override;
  void pause(ConnectionId connection) override;
  void resume(ConnectionId connection) override;
  void close(ConnectionId connection) override;
  void register_peer(ConnectionId connection) override { guests_.erase(connection); }

 private:
  struct Known {
    std::unique_ptr<Channel> channel;
    int attempt = 0;           ///< of the channel, whose socket epoll watches,
    std::uint32_t events = 0;  ///< and the requested events
    std::string network = {};  ///< of an accepted one: network_of()
  };

  void channel_opened(Channel& channel) override;
  void channel_message(Channel& channel, Message message) override;
  void channel_failed(Channel& channel, CloseCause cause, const std::string& refusal,
                      const std::string& reason) override;

  void serve_until_stopped();
  void wait_for_events();
  int timeout_ms();
  std::int64_t next_clock_ns() const;
  bool begin_sleep();
  int sleep(std::span<epoll_event> events, int wait_ms);
  bool run_in_its_sleep(const std::function<void()>& work);
  void wake();
  bool spin();
  bool spin_until(double until_s);
  void serve_descriptor(std::uint64_t tag, std::uint32_t events);
  void accept_all(Listener& listener);
  void rest_from_accepting();
  void take_user_key();
  bool make_room();
  void trim_guests();
  bool drop_oldest(const std::set<ConnectionId>& of);
  bool drop_of_busiest_peer();
  void drop(ConnectionId id, const std::string& refusal, const std::string& reason);
  void serve_busy();
  void do_posted();
  void fire_timers();
  void flush_all();
  void look_at_clocks();
  void tell_ended();
  void end_service();
  void begin_connecting(ConnectionId id, const ChannelAddress& address);
  struct LookedUp {
    ChannelAddress target;
    std::vector<SocketAddress> addresses = {};
    std::string error = {};
  };
  LookedUp look_up(const ChannelAddress& target) const;
  void resolved(ConnectionId id, LookedUp found);
  void watch(Known& known);
  void forget(ConnectionId id);
  Channel* find(ConnectionId id) const;
  void count(const std::string& what, std::uint64_t how_many = 1);

  const NodeLoopOptions options_;
  ChannelSettings settings_;
  const std::size_t max_guests_, max_accepted_;
  const double spin_s_;
  double next_spin_s_;           ///< adapts: shorter after a spin that saw nothing
  double spins_again_at_s_ = 0;  ///< after a spin on a core that was not free
  Socket epoll_, wake_;
  std::list<Listener> listeners_;
  std::vector<Address> addresses_;
  std::mt19937_64 random_;
  std::unique_ptr<FolderDisk> disk_;
  Timers timers_;

  Node* node_ = nullptr;
  ConnectionId last_id_;
  std::unordered_map<ConnectionId, Known> channels_;
  std::set<ConnectionId> unauthenticated_,
      guests_;                                  ///< accepted; not open, and open and no member; oldest first
  std::size_t num_accepted_ = 0;                ///< of channels_
  std::unordered_set<ConnectionId> unflushed_;  ///< have something to send
  std::unordered_set<ConnectionId> busy_;       ///< have input that epoll does not report
  std::unordered_set<ConnectionId> unarmed_;    ///< have to be asked before the loop sleeps
  std::vector<std::unique_ptr<Channel>>
      closing_channels_;                      ///< closed, perhaps while one of its functions runs
  std::vector<std::function<void()>> later_;  ///< work that may not run within a call of the node's
  struct Ended {
    CloseCause cause;
    std::string reason;
  };
  std::map<ConnectionId, Ended> ended_;  ///< connections whose end the node has not received yet
  double clock_at_s_ = 0;                ///< when look_at_clocks() is due
  bool rests_from_accepting_ = false;
  Complaints complaints_{""};        ///< of peers that failed
  std::list<std::thread> look_ups_;  ///< of names

  std::mutex turn_;
  std::atomic<std::thread::id> whose_turn_ = {};
  bool sleeps_ = false;  ///< the thread in run(), and not longer than until
  std::int64_t sleeps_until_ns_ = 0;

  mutable std::mutex mutex_;  ///< of the later members
  std::vector<std::function<void()>> posted_;
  bool stopped_ = false;
  bool is_to_be_woken_ = false;           ///< for posted work
  std::atomic<bool> has_posted_ = false;  ///< or stopped; written under the mutex
  ChannelCounts counts_;
};

}  // namespace trireme::wire
