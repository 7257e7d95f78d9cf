#include "trireme/ps/client.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/ps/internal/float_bytes.h"

namespace trireme::ps {

struct Pending::SharedState {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Result> result;
  std::shared_ptr<std::atomic<int>> num_open;  ///< calls of the client without a result

  void set(const Result& what) {
    {
      const std::lock_guard lock(mutex);
      if (result) return;
      result = what;
      --*num_open;
    }
    changed.notify_all();
  }
};

namespace {

// Up to this size the calling thread sends the request, if the client's thread sleeps and no other call is
// open. This saves a wake-up. Concurrent calls leave it to the client's thread, which sends them in one
// write.
constexpr std::size_t kSentAtOnceBytes = 64 << 10;

wire::Buffer copy_of(std::span<const float> values) { return in_buffer({values.begin(), values.end()}); }

Result failure(ErrorKind error, std::string message) {
  Result result;
  result.error = error;
  result.message = std::move(message);
  return result;
}

}  // namespace

bool Pending::is_done() const { return wait_for(0).has_value(); }

std::optional<Result> Pending::wait_for(double seconds) const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                           [&] { return state_->result.has_value(); });
  return state_->result;
}

Result Pending::get() const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->result.has_value(); });
  if (state_->result->error != ErrorKind::kNone) throw_error(*state_->result);
  return *state_->result;
}

void throw_error(const Result& result) {
  switch (result.error) {
    case ErrorKind::kUnknownTable:
    case ErrorKind::kOutOfRange:
    case ErrorKind::kMalformed:
    case ErrorKind::kTooLarge:
      throw InvalidArgument("parameter server: " + result.message);
    case ErrorKind::kDataLoss:
    case ErrorKind::kNotSaved:
      throw DataError("parameter server: " + result.message);
    default:
      throw CommError("parameter server: " + result.message);
  }
}

/// The thread, its loop and its node. When the loop ends, all pending calls are destroyed, which ends every
/// wait.
class Client::Service {
 public:
  Service(ClientOptions options, wire::NodeLoopOptions loop)
      : loop_(std::make_unique<wire::NodeLoop>(with_self(std::move(loop), options))),
        node_(std::make_unique<ClientNode>(std::move(options))),
        thread_([this] { serve(); }) {
    pthread_setname_np(thread_.native_handle(), "trireme-ps");
  }

  ~Service() {
    {
      const std::lock_guard lock(mutex_);
      if (loop_) loop_->stop();
    }
    thread_.join();
  }

  /// `bytes`: upper bound of the sent bytes, if known to be small.
  Pending call(std::function<void(ClientNode&, Done)> begin, std::size_t bytes = ~std::size_t{0}) {
    const auto state = std::make_shared<Pending::SharedState>();
    state->num_open = num_open_;
    const bool is_alone = num_open_->fetch_add(1) == 0;
    // The last copy of the guard is destroyed when no answer can come any more.
    const auto guard =
        std::shared_ptr<Pending::SharedState>(state.get(), [this, state](Pending::SharedState*) {
          state->set(failure(ErrorKind::kTimeout, "the client has ended: " + ended_));
        });
    post([begin = std::move(begin),
          guard](ClientNode& node) { begin(node, [guard](const Result& result) { guard->set(result); }); },
         is_alone && bytes <= kSentAtOnceBytes);
    return Pending(state);
  }

  void post(std::function<void(ClientNode&)> work, bool at_once) {
    const std::lock_guard lock(mutex_);
    if (!loop_) return;
    auto on_node = [this, work = std::move(work)] { work(*node_); };
    at_once ? loop_->post_or_run(std::move(on_node)) : loop_->post(std::move(on_node));
  }

 private:
  static wire::NodeLoopOptions with_self(wire::NodeLoopOptions loop, const ClientOptions& options) {
    loop.self = {.role = "worker", .name = text(options.worker)};
    return loop;
  }

  void serve() {
    std::string ended = "it was closed";
    try {
      loop_->run(*node_);
    } catch (const std::exception& error) {
      ended = error.what();
    }
    std::unique_ptr<wire::NodeLoop> loop;
    {
      const std::lock_guard lock(mutex_);
      ended_ = ended;
      loop = std::move(loop_);
    }
    node_.reset();
  }

  std::mutex mutex_;  ///< guards loop_, and ended_ until it is set
  std::string ended_;
  const std::shared_ptr<std::atomic<int>> num_open_ = std::make_shared<std::atomic<int>>(0);
  std::unique_ptr<wire::NodeLoop> loop_;
  std::unique_ptr<ClientNode> node_;
  std::thread thread_;
};

Client::Client(ClientOptions options, wire::NodeLoopOptions loop)
    : service_(std::make_unique<Service>(std::move(options), std::move(loop))) {
  service_->call([](ClientNode& node, Done done) { node.wait_until_member(std::move(done)); }).get();
}
Client::~Client() = default;

std::unique_ptr<Client> Client::from_environment(ClientOptions options) {
  const auto variable = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  const std::string rank = variable("RANK").value_or("");
  const std::string coordinator = variable("TRIREME_PS_COORDINATOR").value_or("");
  const std::string world_size = variable("WORLD_SIZE").value_or("0");
  const auto is_number = [](const std::string& word) {
    return !word.empty() && word.size() < 9 && word.find_first_not_of("0123456789") == word.npos;
  };
  require(is_number(world_size), "WORLD_SIZE is '", world_size, "'; expected the number of workers");
  require(
      is_number(rank) && !coordinator.empty(), "RANK is '", rank, "' and TRIREME_PS_COORDINATOR '",
      coordinator,
      "'; expected this worker's number and the address of a coordinator: start this program with trireme "
      "launch -n N --servers M -- PROGRAM, or set both");
  const wire::Secret secret = wire::Secret::of_servers(variable);
  wire::NodeLoopOptions loop;
  if (!secret.empty()) loop.security = wire::Security::with_secret(secret, wire::is_encrypted(variable));
  if (options.num_workers == 0) options.num_workers = static_cast<std::uint32_t>(std::stoul(world_size));
  options.worker = static_cast<WorkerId>(std::stoul(rank));
  options.host = host_name();
  options.coordinator = coordinator;
  return std::make_unique<Client>(options, loop);
}

ClusterMap Client::map() const {
  ClusterMap map;
  with_node([&](ClientNode& node) { map = node.map(); });
  return map;
}
WorkerClock Client::clock() const {
  WorkerClock clock = 0;
  with_node([&](ClientNode& node) { clock = node.clock(); });
  return clock;
}
WorkerLife Client::life() const {
  WorkerLife life;
  with_node([&](ClientNode& node) { life = node.life(); });
  return life;
}

TableId Client::open_table(const TableSpec& spec) {
  service_->call([spec](ClientNode& node, Done done) { node.create_table(spec, std::move(done)); }).get();
  TableId table = 0;
  with_node([&](ClientNode& node) { table = node.map().table(spec.name)->id; });
  service_->call([table](ClientNode& node, Done done) { node.join(table, std::move(done)); }).get();
  return table;
}

Pending Client::push(TableId table, std::span<const float> values, PushOptions options) {
  return push(table, copy_of(values), options);
}
Pending Client::push(TableId table, wire::Buffer values, PushOptions options) {
  const std::size_t bytes = values.size();
  return service_->call(
      [table, values = std::move(values), options](ClientNode& node, Done done) {
        node.push(table, values, std::move(done), options);
      },
      bytes);
}
Pending Client::push_chunk(TableId table, std::uint64_t chunk, wire::Buffer values, PushOptions options) {
  const std::size_t bytes = values.size();
  return service_->call(
      [table, chunk, values = std::move(values), options](ClientNode& node, Done done) {
        node.push_chunk(table, chunk, values, std::move(done), options);
      },
      bytes);
}
Pending Client::restore_chunk(TableId table, std::uint64_t chunk, wire::Buffer values_and_state,
                              std::uint64_t num_updates) {
  return service_->call(
      [table, chunk, values = std::move(values_and_state), num_updates](ClientNode& node, Done done) {
        node.restore_chunk(table, chunk, values, num_updates, std::move(done));
      });
}
Pending Client::pull_state(TableId table, std::uint64_t chunk, CallOptions options) {
  return service_->call(
      [table, chunk, options](ClientNode& node, Done done) {
        node.pull_state(table, chunk, std::move(done), options);
      },
      0);
}
Pending Client::assign(TableId table, std::span<const float> values) {
  return service_->call([table, values = copy_of(values)](ClientNode& node, Done done) {
    node.assign(table, values, std::move(done));
  });
}
Pending Client::pull(TableId table, std::span<float> out, CallOptions options) {
  return service_->call(
      [table, out, options](ClientNode& node, Done done) { node.pull(table, out, std::move(done), options); },
      0);
}
Pending Client::pull_chunk(TableId table, std::uint64_t chunk, Version newer_than, CallOptions options) {
  return service_->call(
      [table, chunk, newer_than, options](ClientNode& node, Done done) {
        node.pull_chunk(table, chunk, newer_than, std::move(done), options);
      },
      0);
}
Pending Client::pull_chunk(TableId table, std::uint64_t chunk, std::span<float> out, CallOptions options) {
  return service_->call(
      [table, chunk, out, options](ClientNode& node, Done done) {
        node.pull_chunk(table, chunk, out, std::move(done), options);
      },
      0);
}
Pending Client::push_pull(TableId table, std::span<const float> values, std::span<float> out,
                          PushOptions options) {
  return service_->call(
      [table, values = copy_of(values), out, options](ClientNode& node, Done done) {
        node.push_pull(table, values, out, std::move(done), options);
      },
      values.size_bytes());
}
Pending Client::push_rows(TableId table, std::span<const std::uint64_t> keys, std::span<const float> rows,
                          PushOptions options) {
  return service_->call(
      [table, keys = std::vector(keys.begin(), keys.end()), rows = std::vector(rows.begin(), rows.end()),
       options](ClientNode& node, Done done) { node.push_rows(table, keys, rows, std::move(done), options); },
      keys.size_bytes() + rows.size_bytes());
}
Pending Client::assign_rows(TableId table, std::span<const std::uint64_t> keys, std::span<const float> rows) {
  return service_->call(
      [table, keys = std::vector(keys.begin(), keys.end()), rows = std::vector(rows.begin(), rows.end())](
          ClientNode& node, Done done) { node.assign_rows(table, keys, rows, std::move(done)); });
}
Pending Client::pull_rows(TableId table, std::span<const std::uint64_t> keys, std::span<float> out,
                          CallOptions options) {
  return service_->call(
      [table, keys = std::vector(keys.begin(), keys.end()), out, options](ClientNode& node, Done done) {
        node.pull_rows(table, keys, out, std::move(done), options);
      },
      keys.size_bytes());
}
Pending Client::push_pull_rows(TableId table, std::span<const std::uint64_t> keys,
                               std::span<const float> rows, std::span<float> out, PushOptions options) {
  return service_->call(
      [table, keys = std::vector(keys.begin(), keys.end()), rows = std::vector(rows.begin(), rows.end()), out,
       options](ClientNode& node, Done done) {
        node.push_pull_rows(table, keys, rows, out, std::move(done), options);
      },
      keys.size_bytes() + rows.size_bytes());
}
void Client::tick() {
  service_->post([](ClientNode& node) { node.tick(); }, /*at_once=*/false);
}
Pending Client::barrier(std::uint32_t num_workers) {
  return service_->call(
      [num_workers](ClientNode& node, Done done) { node.barrier(num_workers, std::move(done)); });
}
Pending Client::leave() {
  return service_->call([](ClientNode& node, Done done) { node.leave(std::move(done)); });
}

Pending Client::call(std::function<void(ClientNode&, Done)> begin) {
  return service_->call(std::move(begin));
}

void Client::with_node(const std::function<void(ClientNode&)>& use) const {
  service_
      ->call([&use](ClientNode& node, const Done& done) {
        use(node);
        done(Result{});
      })
      .get();
}

}  // namespace trireme::ps
