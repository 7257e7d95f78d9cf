#include "tests/unit/ps/fault_run.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "trireme/base/text.h"
#include "trireme/ps/internal/restored_rows.h"

namespace trireme::ps {
namespace {

ClusterOptions cluster_of(Random& random, std::uint32_t num_replicas) {
  return {.num_partitions = 8,
          .num_replicas = num_replicas,
          .num_servers = 3,
          .num_workers = 2 + static_cast<int>(random.below(2))};
}

TableSpec table_of(Random& random) {
  TableSpec spec;
  spec.name = "sums";
  constexpr std::uint32_t kStaleness[] = {0, 0, 1, 3, 10, kAsynchronous};
  spec.staleness = kStaleness[random.below(6)];
  if (spec.staleness == 0 && random.below(2) == 0) spec.apply_at = ApplyAt::kClock;
  constexpr const char* kPush[] = {"none", "none", "fp16", "bf16", "int8", "top-k"};
  spec.compression.push = kPush[random.below(6)];
  spec.compression.fraction = 0.4;
  return spec;
}

TableSpec rows_like(const TableSpec& dense, const char* name) {
  TableSpec spec = dense;
  spec.name = name;
  spec.kind = TableKind::kSparse;
  spec.num_elements = 0;
  spec.rows.elements = dense.chunk_elements;
  if (spec.compression.push == "top-k") spec.compression.push = "none";
  return spec;
}

/// The largest integer that the codec represents exactly. int8 is exact where the largest of a block is 127.
std::uint64_t most_of(const TableSpec& spec) {
  if (spec.compression.push == "bf16") return 256;
  return spec.compression.push == "int8" ? 128 : 1000;
}

/// The key of a place after the chunks, spread over all keys.
std::uint64_t key_of(int place) { return static_cast<std::uint64_t>(place) * 0x9e3779b97f4a7c15; }

}  // namespace

FaultRun::FaultRun(std::uint64_t seed, FaultRunOptions options)
    : seed_(seed),
      options_(options),
      random_(seed, 1),
      cluster_(seed, cluster_of(random_, options.num_replicas)),
      spec_(table_of(random_)) {
  spec_.chunk_elements = kElements;
  spec_.num_elements = kChunks * kElements;
}

void FaultRun::fail(const std::string& what) {
  if (failure_.empty()) failure_ = text("at ", cluster_.simulation.now_s(), " s: ", what);
}

std::vector<std::string> FaultRun::servers() const {
  std::vector<std::string> names;
  for (int i = 0; i < 3; ++i) names.push_back(Cluster::server_name(i));
  return names;
}

std::string FaultRun::run() {
  auto& simulation = cluster_.simulation;
  cluster_.add_server(3);
  simulation.crash("server3");  // it may join later
  table_ = cluster_.create(0, spec_);
  rows_ = cluster_.create(0, rows_like(spec_, "rows"));
  TableSpec passing = rows_like(spec_, "passing");
  passing.initial_range = 1;
  passing.rows.admit_after = 2;
  passing.rows.admit_probability = 0.7;
  passing.rows.evict_after = 4;
  passing.rows.most_rows = 80;
  passing.compression.pull = "int8";
  passing_ = cluster_.create(0, passing);
  if (table_ == 0 || rows_ == 0 || passing_ == 0 || !cluster_.settles(kPatience_s))
    return "the cluster did not begin";
  for (int worker = 0; worker < cluster_.options().num_workers; ++worker) begin_life(worker);
  for (int fault = 0; fault < options_.num_faults && failure_.empty(); ++fault) {
    simulation.run_for(0.3 * random_.uniform());
    inject();
    compare_replicas(false);
  }
  simulation.set_faults({});
  last_clock_ = 0;
  for (const auto& life : lives_) {
    if (simulation.is_running(Cluster::worker_name(life->worker)))
      last_clock_ = std::max(last_clock_, cluster_.worker(life->worker).clock() + 2);
  }
  const auto all_ended = [this] {
    return num_restarts_ == 0 && std::all_of(lives_.begin(), lives_.end(), [](const auto& life) {
             return life->is_done || life->has_ended;
           });
  };
  const bool ended = simulation.run_until([&] { return !failure_.empty() || all_ended(); }, kPatience_s);
  if (!ended) fail("workers did not get to their ends after the faults had stopped");
  if (failure_.empty() && !cluster_.settles(kPatience_s))
    fail("the partitions did not get to where they belong");
  simulation.run_for(1);
  if (failure_.empty()) compare_replicas(true);
  if (failure_.empty()) check_sums();
  if (failure_.empty()) return "";
  const std::string staleness = spec_.staleness == kAsynchronous ? "none" : std::to_string(spec_.staleness);
  return text("seed ", seed_, ", staleness ", staleness,
              spec_.apply_at == ApplyAt::kClock ? ", at clocks" : "", ", pushed as ", spec_.compression.push,
              ": ", failure_);
}

// ---- workers

void FaultRun::begin_life(int worker) {
  auto& client = cluster_.worker(worker);
  const auto life = std::make_shared<Life>(Life{.worker = worker, .incarnation = client.life().incarnation});
  lives_.push_back(life);
  // The map comes first. Before that there is no table.
  const auto begin = [this, life, worker](const auto& self) -> void {
    if (life->has_ended || cluster_.worker(worker).life().incarnation != life->incarnation) return;
    if (cluster_.worker(worker).map().tables.size() < 3) {
      cluster_.simulation.at(0.05, [self, life, this, worker] {
        if (!life->has_ended && cluster_.simulation.is_running(Cluster::worker_name(worker))) self(self);
      });
      return;
    }
    cluster_.worker(worker).join(rows_, [this, life](const Result& result) {
      if (result.error != ErrorKind::kNone) return on_error(life, result);
      do_step(life);
    });
  };
  begin(begin);
}

void FaultRun::on_error(const std::shared_ptr<Life>& life, const Result& result) {
  if (life->has_ended) return;
  life->has_ended = true;
  if (result.error != ErrorKind::kDeclaredDead)
    return fail(text("worker ", life->worker, ": ", name_of(result.error), ": ", result.message));
  // The worker restarts, like its process would.
  ++num_restarts_;
  cluster_.simulation.at(0.1, [this, life] {
    --num_restarts_;
    const std::string name = Cluster::worker_name(life->worker);
    const bool is_same = cluster_.simulation.is_running(name) &&
                         cluster_.worker(life->worker).life().incarnation == life->incarnation;
    if (!is_same) return;
    cluster_.simulation.crash(name);
    cluster_.simulation.start(name);
    begin_life(life->worker);
  });
}

void FaultRun::do_step(const std::shared_ptr<Life>& life) {
  if (life->has_ended) return;
  ClientNode& client = cluster_.worker(life->worker);
  if (client.clock() >= last_clock_) {
    life->is_done = true;
    return;
  }
  push_chunks(life);
  push_rows(life);
  push_passing_rows(life);
  if (random_.below(4) == 0) restore_passing_rows(life);
  if (random_.below(2) == 0) {  // a pull before the end of the step sees its own pushes
    pull_then_go_on(life, -1);
  }
  client.tick();
  pull_then_go_on(life, static_cast<int>(random_.below(kPlaces)));
}

FaultRun::Push& FaultRun::new_push(const Life& life, int place) {
  pushes_of_[{life.worker, place}].push_back(pushes_.size());
  Push& push = pushes_.emplace_back();
  push.worker = life.worker;
  push.incarnation = life.incarnation;
  push.clock = cluster_.worker(life.worker).clock();
  push.place = place;
  for (int i = 0; i < kElements; ++i)
    push.values.push_back(static_cast<float>(random_.below(most_of(spec_))));
  // The first elements count the pushes of each worker.
  for (int i = 0; i < 3; ++i) push.values[static_cast<std::size_t>(i)] = i == life.worker ? mark(place) : 0;
  if (spec_.compression.push == "int8") push.values.back() = 127;
  return push;
}

void FaultRun::push_chunks(const std::shared_ptr<Life>& life) {
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const std::size_t index = pushes_.size();
    ClientNode& client = cluster_.worker(life->worker);
    std::vector<float>& values = new_push(*life, chunk).values;
    const auto left_out = [&](std::size_t i) {
      const std::span<const float> residual = client.residual(table_, static_cast<std::uint64_t>(chunk));
      return residual.empty() ? 0 : residual[i];
    };
    const wire::Buffer pushed = floats(values);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += left_out(i);
    client.push_chunk(table_, static_cast<std::uint64_t>(chunk), pushed,
                      [this, life, index](const Result& result) {
                        if (result.error != ErrorKind::kNone) return on_error(life, result);
                        pushes_[index].is_acknowledged = true;
                      });
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= left_out(i);
  }
}

/// All rows in one call, which goes to several partitions. Each row comes in two pieces, which the client
/// adds.
void FaultRun::push_rows(const std::shared_ptr<Life>& life) {
  const std::size_t first = pushes_.size();
  std::vector<std::uint64_t> keys;
  std::vector<float> values;
  for (int place = kChunks; place < kPlaces; ++place) {
    const Push& push = new_push(*life, place);
    keys.push_back(key_of(place));
    for (const float value : push.values) values.push_back(value - 1);
  }
  for (int place = kPlaces - 1; place >= kChunks; --place) {
    keys.push_back(key_of(place));
    values.insert(values.end(), kElements, 1.0F);
  }
  cluster_.worker(life->worker).push_rows(rows_, keys, values, [this, life, first](const Result& result) {
    if (result.error != ErrorKind::kNone) return on_error(life, result);
    for (std::size_t i = 0; i < kRows; ++i) pushes_[first + i].is_acknowledged = true;
  });
}

void FaultRun::push_passing_rows(const std::shared_ptr<Life>& life) {
  std::vector<std::uint64_t> keys;
  for (int i = 0; i < 20; ++i) keys.push_back(random_.below(random_.below(2) == 0 ? 20 : 300));
  const std::vector<float> values(keys.size() * kElements, random_.uniform());
  cluster_.worker(life->worker).push_rows(passing_, keys, values, [this, life](const Result& result) {
    if (result.error != ErrorKind::kNone) on_error(life, result);
  });
}

/// Restores rows, or keys that are not admitted yet, in one partition, as from a checkpoint. They may or may
/// not have existed.
void FaultRun::restore_passing_rows(const std::shared_ptr<Life>& life) {
  ClientNode& client = cluster_.worker(life->worker);
  const TableSpec& spec = client.map().tables.at(passing_);
  const bool of_candidates = random_.below(2) == 0;
  const std::size_t row_bytes = restored_row_bytes(spec, of_candidates);
  std::vector<std::byte> rows(row_bytes * random_.below(20));
  for (std::size_t at = 0; at < rows.size(); at += row_bytes) {
    const RowHead head = {.key = random_.below(300),
                          .last_clock = static_cast<std::uint32_t>(random_.below(4)),
                          .count = 1,
                          .is_marked = static_cast<std::uint32_t>(random_.below(2))};
    std::memcpy(rows.data() + at, &head, sizeof head);
  }
  const RestoredHead head = {.row_bytes = static_cast<std::uint32_t>(row_bytes),
                             .of_candidates = of_candidates ? 1U : 0U,
                             .begins = static_cast<std::uint32_t>(random_.below(2))};
  client.restore_rows(passing_, static_cast<PartitionId>(random_.below(8)),
                      wire::Buffer::of(RestoredRows::write(head, rows)), [this, life](const Result& result) {
                        if (result.error != ErrorKind::kNone) on_error(life, result);
                      });
}

void FaultRun::pull(int worker, int place,
                    const std::function<void(const Result&, std::vector<float>)>& done) {
  ClientNode& client = cluster_.worker(worker);
  if (place < kChunks) {
    client.pull_chunk(table_, static_cast<std::uint64_t>(place), 0, [done](const Result& result) {
      std::vector<float> values(result.values.size() / sizeof(float));
      if (!values.empty()) std::memcpy(values.data(), result.values.bytes().data(), result.values.size());
      done(result, std::move(values));
    });
    return;
  }
  // The row twice, with another row between.
  const std::uint64_t keys[] = {key_of(place), key_of(kPlaces), key_of(place)};
  const auto out = std::make_shared<std::vector<float>>(3 * kElements);
  client.pull_rows(rows_, keys, *out, [this, done, out](const Result& result) {
    const std::vector<float> once(out->begin(), out->begin() + kElements);
    if (result.error == ErrorKind::kNone && !std::equal(once.begin(), once.end(), out->end() - kElements))
      fail("a key that was asked for twice has two answers");
    done(result, once);
  });
}

/// `place` -1: any place, and no step waits for the pull.
void FaultRun::pull_then_go_on(const std::shared_ptr<Life>& life, int place) {
  ClientNode& client = cluster_.worker(life->worker);
  const bool goes_on = place >= 0;
  if (!goes_on) place = static_cast<int>(random_.below(kPlaces));
  std::size_t num_own = 0;
  for (const std::size_t index : pushes_of_[{life->worker, place}])
    num_own += pushes_[index].incarnation == life->incarnation ? 1 : 0;
  const WorkerClock clock = client.clock();
  pull(life->worker, place,
       [this, life, place, clock, num_own, goes_on](const Result& result, const std::vector<float>& values) {
         if (result.error != ErrorKind::kNone) return on_error(life, result);
         check_pull(*life, place, clock, num_own, values);
         if (!goes_on || life->has_ended) return;
         cluster_.simulation.at(0.1 * random_.uniform(), [this, life] {
           if (!life->has_ended && cluster_.simulation.is_running(Cluster::worker_name(life->worker)))
             do_step(life);
         });
       });
}

void FaultRun::check_pull(const Life& life, int place, WorkerClock clock, std::size_t num_own,
                          const std::vector<float>& values) {
  if (values.size() != kElements) return fail("a pull of the wrong size");
  const bool is_known = cluster_.simulation.is_running("coordinator");
  const auto lives = [&](int worker, Incarnation incarnation) {
    return cluster_.coordinator().map().lives({static_cast<WorkerId>(worker), incarnation});
  };
  // A worker that was given up is not waited for. It may see later steps of the others until it is notified.
  const bool is_given_up = is_known && !lives(life.worker, life.incarnation);
  for (int worker = 0; worker < 3; ++worker) {
    std::size_t least = 0, most = 0;
    for (const std::size_t index : pushes_of_[{worker, place}]) {
      const Push& push = pushes_[index];
      // A tick that was sent after the pull may have overtaken it.
      const bool in_step = spec_.apply_at == ApplyAt::kArrival || is_given_up ||
                           push.clock < cluster_.worker(life.worker).clock();
      most += in_step ? 1 : 0;
      // A worker that lives by the coordinator's map was never removed by a server.
      const bool is_counted = is_known && lives(worker, push.incarnation);
      const bool is_due =
          spec_.staleness != kAsynchronous && push.clock + spec_.staleness < clock && is_counted;
      least += is_due ? 1 : 0;
    }
    const auto seen = static_cast<std::size_t>(values[static_cast<std::size_t>(worker)] / mark(place));
    if (worker == life.worker && spec_.apply_at == ApplyAt::kArrival && is_known && !is_given_up)
      least = std::max(least, num_own);
    if (seen < least || seen > most)
      return fail(text("worker ", life.worker, " at clock ", clock, " saw ", seen, " pushes of worker ",
                       worker, " at place ", place, ", which may be ", least, " to ", most));
  }
}

// ---- invariants at the end

void FaultRun::compare_replicas(bool at_rest) {
  auto& simulation = cluster_.simulation;
  for (PartitionId id = 0; id < 8; ++id) {
    std::map<std::pair<Epoch, Version>, std::uint64_t> digests;
    std::optional<Version> version;
    for (int i = 0; i < 4; ++i) {
      if (!simulation.is_running(Cluster::server_name(i))) continue;
      const auto report = cluster_.server(i).report(id);
      if (!report.holds_all) continue;
      const auto [found, is_new] = digests.try_emplace({report.epoch, report.version}, report.digest);
      if (!is_new && found->second != report.digest)
        return fail(text("partition ", id, ": two replicas of version ", report.version, " differ"));
      if (at_rest && version && *version != report.version)
        return fail(text("partition ", id, ": at rest one replica has version ", *version, ", another ",
                         report.version));
      version = report.version;
    }
  }
}

void FaultRun::check_sums() {
  const auto last =
      std::find_if(lives_.rbegin(), lives_.rend(), [](const auto& life) { return life->is_done; });
  if (last == lives_.rend()) return fail("no worker got to its end");
  for (int place = 0; place < kPlaces; ++place) {
    std::vector<float> left;
    const Result result = cluster_.wait([&](const Done& done) {
      pull((*last)->worker, place, [&left, done](const Result& told, std::vector<float> values) {
        left = std::move(values);
        done(told);
      });
    });
    if (result.error != ErrorKind::kNone) return fail("the last pull: " + result.message);
    std::vector<const Push*> in_doubt;
    for (const Push& push : pushes_) {
      if (push.place != place) continue;
      if (!push.is_acknowledged) in_doubt.push_back(&push);
      for (std::size_t i = 0; push.is_acknowledged && i < left.size(); ++i) left[i] -= push.values[i];
    }
    // For a worker that ended, an unacknowledged push counts completely or not at all.
    if (in_doubt.size() > 24) return fail("too many pushes were never acknowledged");
    std::vector<float> rest = left;
    const auto is_nothing_left = [&] {
      return std::all_of(rest.begin(), rest.end(), [](float value) { return value == 0; });
    };
    bool is_sum = is_nothing_left();
    std::uint32_t subset = 0;  // each subset differs from the previous one in one push (a Gray code)
    for (std::uint32_t n = 1; n < 1U << in_doubt.size() && !is_sum; ++n) {
      const int k = std::countr_zero(n);
      subset ^= 1U << k;
      const float sign = (subset >> k & 1) != 0 ? -1 : 1;
      const Push& push = *in_doubt[static_cast<std::size_t>(k)];
      for (std::size_t i = 0; i < rest.size(); ++i) rest[i] += sign * push.values[i];
      is_sum = is_nothing_left();
    }
    if (!is_sum)
      return fail(text("place ", place, " is off by ", left[3], ", ", left[4], ", ", left[5], " with ",
                       in_doubt.size(), " pushes in doubt"));
  }
}

}  // namespace trireme::ps
