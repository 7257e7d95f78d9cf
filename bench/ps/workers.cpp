#include "bench/ps/workers.h"

#include <sys/socket.h>

#include <array>
#include <deque>
#include <map>

#include "bench/spread.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/ps/client.h"
#include "trireme/ps/internal/float_bytes.h"

namespace trireme::bench {

struct Workers::Answer {
  double begin_s, end_s, p50_s;
};

namespace {

/// Client, tables and buffers of a worker for its jobs.
class Desk {
 public:
  Desk(const Cluster& cluster, int worker)
      : client_({.worker = static_cast<ps::WorkerId>(worker),
                 .host = text("worker", worker),
                 .coordinator = cluster.coordinator()},
                cluster.worker_loop(worker)) {}

  void prepare(const Job& job) {
    job_ = job;
    const bool rows = job.num_rows > 0;
    const std::size_t floats = rows ? kBatchRows * kRowElements : job.bytes / sizeof(float);
    std::vector<float> values(floats);
    for (std::size_t i = 0; i < floats; ++i) values[i] = static_cast<float>(i % 251) - 125;
    out_.assign(static_cast<std::size_t>(job.in_flight), values);
    if (rows) rows_ = values;
    body_ = ps::in_buffer(std::move(values));
    rows ? prepare_rows(job) : prepare_table(job);
  }

  ps::Pending begin(int number) {
    const auto place = static_cast<std::size_t>(number % job_.in_flight);
    const auto batch = static_cast<std::size_t>(number) % std::max<std::size_t>(1, keys_.size() / kBatchRows);
    switch (job_.operation) {
      case Operation::kPush:
        return client_.push(table_, body_);
      case Operation::kPull:
        return client_.pull(table_, out_[place]);
      case Operation::kPushPull:
        client_.push(table_, body_);
        return client_.pull(table_, out_[place]);
      case Operation::kStep:
        client_.push(table_, body_);
        client_.tick();
        return client_.pull(table_, out_[place]);
      case Operation::kPushRows:
        return client_.push_rows(table_, keys_of(batch), rows_);
      case Operation::kPullRows:
        return client_.pull_rows(table_, keys_of(batch), out_[place]);
    }
    throw InternalError("a job of no operation");
  }

 private:
  /// Pushes values before the measurement: a pull computes values that were never pushed.
  void prepare_table(const Job& job) {
    ps::TableSpec spec;
    spec.name = text(name_of(job.operation), " ", job.bytes, " ", job.codec);
    spec.num_elements = job.bytes / sizeof(float);
    spec.staleness = job.operation == Operation::kStep ? 0 : ps::kAsynchronous;
    spec.compression.push = job.codec;
    const bool is_new = !tables_.contains(spec.name);
    table_ = open(spec);
    if (is_new) client_.push(table_, body_).get();
  }
  /// Creates the row of every key before the measurement.
  void prepare_rows(const Job& job) {
    ps::TableSpec spec;
    spec.name = text("rows ", job.num_rows);
    spec.kind = ps::TableKind::kSparse;
    spec.rows.elements = kRowElements;
    spec.staleness = ps::kAsynchronous;
    const bool is_new = !tables_.contains(spec.name);
    table_ = open(spec);
    if (!is_new) return;
    keys_.resize(job.num_rows);
    Random random(1);
    for (std::uint64_t& key : keys_) key = random.bits();
    const std::vector<float> ones(kBatchRows * kRowElements, 1);
    for (std::size_t batch = 0; batch < keys_.size() / kBatchRows; ++batch)
      client_.push_rows(table_, keys_of(batch), ones).get();
    for (std::size_t left = keys_.size(); left > 1; --left)
      std::swap(keys_[left - 1], keys_[random.below(left)]);
  }
  ps::TableId open(const ps::TableSpec& spec) {
    const auto found = tables_.find(spec.name);
    if (found != tables_.end()) return found->second;
    return tables_[spec.name] = client_.open_table(spec);
  }
  std::span<const std::uint64_t> keys_of(std::size_t batch) const {
    return std::span(keys_).subspan(batch * kBatchRows, kBatchRows);
  }

  ps::Client client_;
  Job job_;
  std::map<std::string, ps::TableId> tables_;
  ps::TableId table_ = 0;
  wire::Buffer body_;
  std::vector<std::vector<float>> out_;
  std::vector<std::uint64_t> keys_;
  std::vector<float> rows_;
};

/// Keeps `in_flight` operations pending. If that is one, returns the time of each.
std::vector<double> work(Desk& desk, const Job& job) {
  std::vector<double> took_s;
  std::deque<ps::Pending> under_way;
  for (int i = 0; i < job.count; ++i) {
    if (under_way.size() == static_cast<std::size_t>(job.in_flight)) {
      under_way.front().get();
      under_way.pop_front();
    }
    const double begin_s = now_s();
    under_way.push_back(desk.begin(i));
    if (job.in_flight > 1) continue;
    under_way.back().get();
    took_s.push_back(now_s() - begin_s);
  }
  for (const ps::Pending& pending : under_way) pending.get();
  return took_s;
}

template <class Value>
Value receive(int socket) {
  Value value;
  if (::recv(socket, &value, sizeof value, 0) != static_cast<ssize_t>(sizeof value))
    throw CommError("a worker of the benchmark has ended");
  return value;
}

template <class Value>
void send(int socket, const Value& value) {
  if (::send(socket, &value, sizeof value, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof value))
    throw CommError("a worker of the benchmark has ended");
}

}  // namespace

const char* name_of(Operation operation) {
  constexpr std::array kNames = {"push", "pull", "push-pull", "step", "push rows", "pull rows"};
  return kNames[static_cast<std::size_t>(operation)];
}

Workers::Workers(const Cluster& cluster, int count) {
  for (int worker = 0; worker < count; ++worker) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
      throw InternalError("no sockets for a worker");
    sockets_.push_back(ends[0]);
    processes_.emplace_back([&] {
      for (const int other : sockets_) ::close(other);
      if (cluster.pinned()) pin_to(0);
      Desk desk(cluster, worker);
      while (true) {
        const Job job = receive<Job>(ends[1]);
        desk.prepare(job);
        send(ends[1], Answer{});
        receive<int>(ends[1]);
        Answer answer{.begin_s = now_s(), .end_s = 0, .p50_s = 0};
        const std::vector<double> took_s = work(desk, job);
        answer.end_s = now_s();
        if (!took_s.empty()) answer.p50_s = median(took_s);
        send(ends[1], answer);
      }
    });
    ::close(ends[1]);
  }
}

Workers::~Workers() {
  processes_.clear();
  for (const int socket : sockets_) ::close(socket);
}

std::vector<Workers::Answer> Workers::answers() {
  std::vector<Answer> result;
  for (const int socket : sockets_) result.push_back(receive<Answer>(socket));
  return result;
}

Timing Workers::run(const Job& job) {
  for (const int socket : sockets_) send(socket, job);
  answers();
  const auto cpu_s = [&] {
    double all_s = 0;
    for (const Child& process : processes_) all_s += process.cpu_s();
    return all_s;
  };
  const double cpu_before_s = cpu_s();
  for (const int socket : sockets_) send(socket, 1);
  const std::vector<Answer> took = answers();
  const auto first = std::ranges::min(took, {}, &Answer::begin_s),
             last = std::ranges::max(took, {}, &Answer::end_s);
  return {
      .seconds = last.end_s - first.begin_s, .p50_s = took.front().p50_s, .cpu_s = cpu_s() - cpu_before_s};
}

}  // namespace trireme::bench
