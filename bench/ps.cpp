// Question: what does a parameter server cost compared with a bare loop over the same kind of socket?
//   bench_ps [--what PART,...] [--ways WAY,...] [--sizes BYTES,...] [--servers N,...] [--workers N,...]
//            [--passes P] [--json] [--smoke]
// Coordinator, servers and workers are processes on this host; servers add up all pushes. The bare loop
// (bare_loop.h) moves the same bytes without a sum. In each pass the variants take turns. The first pass is a
// warm-up. A line for each case: medians over the passes, with minimum and maximum.

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "bench/bare_loop.h"
#include "bench/ps/codec_cost.h"
#include "bench/ps/workers.h"
#include "trireme/base/host.h"

namespace {

using namespace trireme;
using namespace trireme::bench;
using json = nlohmann::ordered_json;

struct Arguments {
  std::vector<std::string> what, ways = way_names();
  std::vector<std::uint64_t> sizes = {4 << 10, 256 << 10, 4 << 20, 64 << 20};
  std::vector<int> servers = {1, 2}, workers = {1, 2};
  int passes = 5, owner_threads = 1;
  std::uint64_t rows = 4'000'000;
  double spin_us = -1;
  std::string codec = "none";
  bool json = false, smoke = false, pin = false;
};

/// Prints each measurement on standard output.
class Report {
 public:
  explicit Report(bool as_json) : as_json_(as_json) {}
  void add(json line) {
    line["load_average"] = load_average();
    if (as_json_)
      std::cout << line.dump() << std::endl;
    else
      print(line);
  }

 private:
  static double load_average() {
    double load = 0;
    ::getloadavg(&load, 1);
    return load;
  }
  static std::string number(double value) {
    std::array<char, 32> digits;
    std::snprintf(digits.data(), digits.size(), "%.3g", value);
    return digits.data();
  }
  static std::string cell(const json& value) {
    if (value.is_string()) return value;
    if (!value.is_object()) return number(value);
    return text(number(value["median"]), " (", number(value["min"]), "-", number(value["max"]), ")");
  }
  /// Prints a row. The names of its columns are printed before it if they differ from those of the last row.
  void print(const json& line) {
    std::string names, cells;
    for (const auto& [name, value] : line.items()) {
      const std::string shown = name == "bytes" ? human_bytes(value) : cell(value);
      const std::size_t width =
          2 + std::max({name.size(), shown.size(), std::size_t{value.is_object() ? 20U : 10U}});
      names += name + std::string(width - name.size(), ' ');
      cells += shown + std::string(width - shown.size(), ' ');
    }
    std::string columns;
    for (const auto& [name, value] : line.items()) columns += name + ' ';
    if (columns != std::exchange(columns_, columns)) std::cout << "\n" << names << "\n";
    std::cout << cells << std::endl;
  }

  const bool as_json_;
  std::string columns_;
};

struct Run {
  const Arguments& arguments;
  const Surroundings& around;
  Report& report;
  /// Calls `pass` for each pass, with false for the warm-up.
  template <class Pass>
  void passes(const Pass& pass) const {
    for (int i = arguments.smoke ? 0 : -1; i < arguments.passes; ++i) pass(i >= 0);
  }
};

/// About a quarter of a GB, or at least 6 and at most 20000 operations.
Job job_of(Operation operation, std::uint64_t bytes, bool smoke) {
  Job job{.operation = operation, .bytes = bytes};
  job.in_flight = bytes <= 64 << 10 ? 64 : bytes <= 1 << 20 ? 16 : bytes <= 16 << 20 ? 4 : 2;
  job.count = static_cast<int>(std::clamp<std::uint64_t>((256 << 20) / bytes, 6, 20000));
  if (smoke) job.count = 3;
  return job;
}

/// The same bytes over one socket. If both directions are used, over one socket for each.
class Bare {
 public:
  explicit Bare(const Way& way, const wire::TlsFiles* tls) : there_(way.tcp, tls), back_(way.tcp, tls) {}
  double run(const Job& job) {
    const auto bytes = static_cast<std::size_t>(job.bytes);
    const BareWork there{.bytes_there = bytes, .messages = job.count, .in_flight = job.in_flight};
    const BareWork back{.bytes_back = bytes, .messages = job.count, .in_flight = job.in_flight};
    if (job.operation == Operation::kPush) return there_.run(there);
    if (job.operation == Operation::kPull) return back_.run(back);
    const double begin_s = now_s();
    std::thread pulls([&] { back_.run(back); });
    there_.run(there);
    pulls.join();
    return now_s() - begin_s;
  }

 private:
  BareLoop there_, back_;
};

void transfer(const Run& run, Operation operation) {
  const Arguments& given = run.arguments;
  const wire::TlsFiles files = run.around.authority.issue("bare", "DNS:worker.0");
  for (const std::string& name : given.ways) {
    const Way& way = find_way(name);
    const bool tls = way.security == wire::Security::Kind::kTls;
    Bare bare(way, tls ? &files : nullptr);
    const Cluster cluster(way, {}, run.around);
    Workers worker(cluster, 1);
    for (const std::uint64_t bytes : given.sizes) {
      Job job = job_of(operation, bytes, given.smoke);
      if (operation == Operation::kPush) given.codec.copy(job.codec, sizeof job.codec - 1);
      const double gigabytes = 1e-9 * static_cast<double>(bytes) * job.count;
      std::vector<double> ours, theirs, cpu;
      run.passes([&](bool counts) {
        const double servers_s = cluster.cpu_s();
        const Timing timing = worker.run(job);
        const double cpu_s = timing.cpu_s + cluster.cpu_s() - servers_s, bare_s = bare.run(job);
        if (!counts) return;
        ours.push_back(gigabytes / timing.seconds);
        theirs.push_back(gigabytes / bare_s);
        cpu.push_back(cpu_s / gigabytes);
      });
      run.report.add({{"what", name_of(operation)},
                      {"way", name},
                      {"bytes", bytes},
                      {"in_flight", job.in_flight},
                      {"codec", job.codec},
                      {"gb_per_s", spread(ours)},
                      {"bare_gb_per_s", spread(theirs)},
                      {"ratio", ratio(ours, theirs)},
                      {"cpu_s_per_gb", spread(cpu)}});
    }
  }
}

void push(const Run& run) {
  if (const compress::Codec* codec = compress::codec(run.arguments.codec))
    run.report.add(cost_of(run.arguments.codec, *codec));
  transfer(run, Operation::kPush);
}
void pull(const Run& run) { transfer(run, Operation::kPull); }
void push_pull(const Run& run) { transfer(run, Operation::kPushPull); }

/// Pushes of 4 KiB, one at a time.
void latency(const Run& run) {
  const wire::TlsFiles files = run.around.authority.issue("bare", "DNS:worker.0");
  Job job{.operation = Operation::kPush, .bytes = 4 << 10, .count = run.arguments.smoke ? 5 : 4000};
  for (const std::string& name : run.arguments.ways) {
    const Way& way = find_way(name);
    BareLoop bare(way.tcp, way.security == wire::Security::Kind::kTls ? &files : nullptr);
    const Cluster cluster(way, {}, run.around);
    Workers worker(cluster, 1);
    std::vector<double> ours, theirs;
    run.passes([&](bool counts) {
      const Timing timing = worker.run(job);
      const double bare_s = bare.run({.bytes_there = job.bytes, .messages = job.count});
      if (!counts) return;
      ours.push_back(1e6 * timing.p50_s);
      theirs.push_back(1e6 * bare_s / job.count);
    });
    run.report.add({{"what", "latency"},
                    {"way", name},
                    {"bytes", job.bytes},
                    {"p50_us", spread(ours)},
                    {"bare_mean_us", spread(theirs)},
                    {"ratio", ratio(ours, theirs)}});
  }
}

/// Several servers and workers. Each worker pushes all of a shared table.
void scaling(const Run& run) {
  for (const std::string& name : run.arguments.ways) {
    for (const int num_servers : run.arguments.servers) {
      const Cluster cluster(find_way(name), {.num_servers = num_servers}, run.around);
      for (const int num_workers : run.arguments.workers) {
        Workers workers(cluster, num_workers);
        const Job job = job_of(Operation::kPush, 4 << 20, run.arguments.smoke);
        const double gigabytes = 1e-9 * static_cast<double>(job.bytes) * job.count;
        std::vector<double> rates, cpu;
        run.passes([&](bool counts) {
          const double servers_s = cluster.cpu_s();
          const Timing timing = workers.run(job);
          if (!counts) return;
          rates.push_back(gigabytes / timing.seconds);
          cpu.push_back((timing.cpu_s + cluster.cpu_s() - servers_s) / (gigabytes * num_workers));
        });
        run.report.add({{"what", "scaling"},
                        {"way", name},
                        {"bytes", job.bytes},
                        {"servers", num_servers},
                        {"workers", num_workers},
                        {"gb_per_s_per_worker", spread(rates)},
                        {"cpu_s_per_gb", spread(cpu)}});
      }
    }
  }
}

/// Steps of two synchronous workers: push, end of the step, pull.
void replication(const Run& run) {
  for (const std::string& name : run.arguments.ways) {
    const Way& way = find_way(name);
    const Cluster one(way, {.num_servers = 2, .num_replicas = 1}, run.around);
    const Cluster two(way, {.num_servers = 2, .num_replicas = 2}, run.around);
    Workers of_one(one, 2), of_two(two, 2);
    const Job job{.operation = Operation::kStep, .bytes = 4 << 20, .count = run.arguments.smoke ? 3 : 60};
    std::vector<double> alone_ms, copied_ms;
    run.passes([&](bool counts) {
      const double alone_s = of_one.run(job).seconds, copied_s = of_two.run(job).seconds;
      if (!counts) return;
      alone_ms.push_back(1e3 * alone_s / job.count);
      copied_ms.push_back(1e3 * copied_s / job.count);
    });
    run.report.add({{"what", "replication"},
                    {"way", name},
                    {"bytes", job.bytes},
                    {"workers", 2},
                    {"step_ms_of_1", spread(alone_ms)},
                    {"step_ms_of_2", spread(copied_ms)},
                    {"ratio", ratio(copied_ms, alone_ms)}});
  }
}

/// A program of this project: next to this one, or in the folder of user programs of an installation.
std::string program(const std::string& name) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto beside = folder / name, installed = folder / "../../bin" / name;
  return std::filesystem::exists(beside) ? beside.string() : installed.string();
}

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  if (!pipe) throw InternalError(text("cannot start ", command));
  std::string output;
  std::array<char, 4096> part;
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe.get()))
    output.append(part.data(), got);
  return output;
}

/// Batches of rows of 16 values in a table of millions: over the ways, and in the storage alone.
void sparse(const Run& run) {
  const Arguments& given = run.arguments;
  for (const std::string& name : given.ways) {
    const Cluster cluster(find_way(name), {}, run.around);
    Workers worker(cluster, 1);
    Job job{.in_flight = 4, .num_rows = std::max(given.rows / kBatchRows, std::uint64_t{1}) * kBatchRows};
    job.count = static_cast<int>(job.num_rows / kBatchRows);
    std::vector<double> pulled, pushed;
    const auto rate = [&](Operation operation) {
      job.operation = operation;
      return 1e-6 * static_cast<double>(job.num_rows) / worker.run(job).seconds;
    };
    run.passes([&](bool counts) {
      const double pull = rate(Operation::kPullRows), push = rate(Operation::kPushRows);
      if (!counts) return;
      pulled.push_back(pull);
      pushed.push_back(push);
    });
    run.report.add({{"what", "sparse"},
                    {"way", name},
                    {"rows", job.num_rows},
                    {"pull_million_rows_per_s", spread(pulled)},
                    {"push_million_rows_per_s", spread(pushed)}});
  }
  const std::string lines =
      output_of(text("'", program("bench_ps_sparse"), "' --rows ", given.rows, " --passes ", given.passes));
  for (const std::string& line : split(lines, '\n')) {
    if (!line.starts_with('{')) continue;
    const json storage = json::parse(line);
    run.report.add({{"what", "sparse"},
                    {"way", "storage"},
                    {"rule", storage.at("rule")},
                    {"rows", given.rows},
                    {"pull_million_rows_per_s", storage.at("pull")},
                    {"push_million_rows_per_s", storage.at("push")}});
  }
}

/// One of three servers is killed while two workers push: the time of the slowest push after it.
void recovery(const Run& run) {
  const json report = json::parse(output_of(
      text("'", program("trireme"), "' bench ps-chaos --json --kinds kill --seeds ", run.arguments.passes)));
  std::vector<double> pauses;
  for (const json& seed : report.at("seeds")) {
    for (const json& fault : seed.at("faults"))
      pauses.push_back(1e3 * fault.at("longest_pause_s").get<double>());
  }
  run.report.add({{"what", "recovery"}, {"way", "tcp"}, {"longest_pause_ms", spread(pauses)}});
}

struct Part {
  const char* name;
  void (*measure)(const Run&);
};
constexpr Part kParts[] = {{"push", push},       {"pull", pull},        {"push-pull", push_pull},
                           {"latency", latency}, {"scaling", scaling},  {"replication", replication},
                           {"sparse", sparse},   {"recovery", recovery}};

std::vector<std::string> part_names() {
  std::vector<std::string> names;
  for (const Part& part : kParts) names.emplace_back(part.name);
  return names;
}

void declare(CLI::App& app, Arguments& given) {
  app.add_option("--what", given.what, "Parts, by commas: " + join(part_names(), ",") + " (default: all)")
      ->delimiter(',');
  app.add_option("--ways", given.ways, "By commas: " + join(way_names(), ",") + " (default: all)")
      ->delimiter(',');
  app.add_option("--sizes", given.sizes, "Bytes of a push, by commas, multiples of 4 up to 64M: 4K,4M")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{4}, std::uint64_t{BareLoop::kMostBytes}));
  app.add_option("--servers", given.servers, "scaling: by commas")->delimiter(',')->check(CLI::Range(1, 64));
  app.add_option("--workers", given.workers, "scaling: by commas")->delimiter(',')->check(CLI::Range(1, 64));
  app.add_option("--passes", given.passes)->check(CLI::PositiveNumber);
  app.add_option("--rows", given.rows, "sparse: rows of the table")->check(CLI::PositiveNumber);
  app.add_option("--owner-threads", given.owner_threads, "of a server")->check(CLI::NonNegativeNumber);
  app.add_option("--spin-us", given.spin_us, "How long loops spin before they sleep");
  app.add_flag("--pin", given.pin, "Workers on the first core, servers on the second");
  app.add_option("--codec", given.codec, "push: of pushes, " + join(compress::codec_names()));
  app.add_flag("--json", given.json, "A line of JSON for each case");
  app.add_flag("--smoke", given.smoke, "Only see that it runs");
}

void check(Arguments& given) {
  if (given.what.empty()) given.what = part_names();
  const auto names = part_names();
  for (const std::string& what : given.what)
    require(std::ranges::find(names, what) != names.end(), "there is no part '", what, "'",
            suggest(what, names), "; expected some of ", join(names, ","));
  for (const std::string& way : given.ways) find_way(way);
  for (const std::uint64_t size : given.sizes)
    require(size % sizeof(float) == 0, "--sizes has ", size, ", which are no f32; expected multiples of 4");
  compress::codec(given.codec);  // throws for an unknown codec
  if (!given.smoke) return;
  given.passes = 1;
  given.rows = 20'000;
  given.sizes = {4 << 10, 4 << 20};
}

void measure(const Arguments& given, const std::filesystem::path& folder) {
  test::Authority authority("bench", folder);
  const Surroundings around{.folder = folder,
                            .authority = authority,
                            .secret = wire::Secret::random(),
                            .owner_threads = given.owner_threads,
                            .spin_s = given.spin_us < 0 ? -1 : 1e-6 * given.spin_us,
                            .pinned = given.pin};
  Report report(given.json);
  report.add({{"what", "machine"},
              {"processor", processor().model},
              {"cores", available_cores()},
              {"pinned", given.pin ? "workers on core 0, servers on core 1" : "nothing"},
              {"spin_us", given.spin_us < 0 ? json("as loops choose") : json(given.spin_us)},
              {"owner_threads", given.owner_threads},
              {"passes", given.passes}});
  for (const Part& part : kParts) {
    if (std::ranges::find(given.what, part.name) != given.what.end()) part.measure({given, around, report});
  }
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("What a parameter server costs beside a bare loop over the same kind of socket.");
  Arguments given;
  declare(app, given);
  CLI11_PARSE(app, argc, argv);
  check(given);
  const auto folder =
      std::filesystem::temp_directory_path() / ("trireme-bench-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  try {
    measure(given, folder);
  } catch (...) {
    std::filesystem::remove_all(folder);
    throw;
  }
  std::filesystem::remove_all(folder);
  return kExitOk;
} catch (const Error& error) {
  std::cerr << error.what() << std::endl;
  return error.exit_code();
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return kExitInternal;
}
