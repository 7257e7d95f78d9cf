// Question: how long does an all-reduce between ranks of one host take, by size? Compared are shared memory,
// gloo, and Open MPI if it is installed. Shared memory has three variants: tensors allocated in it, the same
// issued asynchronously and waited for at once, and private tensors. The lower bound is a bare a += b of two
// tensors of that size, each rank on its shard.
//   bench_allreduce [-n RANKS] [--smoke] [--passes P] [--mpi PROGRAM]
// PROGRAM is bench/peers/mpi_allreduce.c, compiled; bench/allreduce.sh does that. Starts its own ranks. In
// each pass the variants take turns, round by round, so that noise affects all equally. One number is the
// mean time of an operation in one round on rank 0. Prints a table on standard error and JSON on standard
// output.

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/comm/internal/backend_table.h"

namespace {

using namespace trireme;

struct Arguments {
  int num_ranks = 2;
  int passes = 5;
  bool smoke = false;
  std::string mpi;
  int rank = -1;  ///< >= 0: this process is a rank, started by the benchmark
  std::string folder;
};

struct Key {
  std::size_t bytes;
  std::string way;
  auto operator<=>(const Key&) const = default;
};
using Samples = std::map<Key, std::vector<double>>;  ///< microseconds

constexpr const char* kInPlace = "shm in place";
constexpr const char* kAsync = "shm async";
constexpr const char* kPrivate = "shm private";
constexpr const char* kBareAdd = "bare add";
constexpr const char* kGloo = "gloo";
constexpr const char* kMpi = "Open MPI";

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] {
      require(i + 1 < argc, "option ", word, " needs a value");
      return std::string(argv[++i]);
    };
    if (word == "--smoke") {
      arguments.smoke = true;
    } else if (word == "-n") {
      arguments.num_ranks = std::stoi(value());
    } else if (word == "--passes") {
      arguments.passes = std::stoi(value());
    } else if (word == "--mpi") {
      arguments.mpi = value();
    } else if (word == "--rank") {
      arguments.rank = std::stoi(value());
    } else if (word == "--folder") {
      arguments.folder = value();
    } else {
      throw InvalidArgument(text("unknown option '", word, "'; known: -n, --smoke, --passes, --mpi"));
    }
  }
  if (arguments.smoke) arguments.passes = 1;
  return arguments;
}

std::vector<std::size_t> sizes(const Arguments& arguments) {
  if (arguments.smoke) return {1 << 10, 64 << 10};
  return {1 << 10, 64 << 10, 1 << 20, 25 << 20, 64 << 20};
}

/// Operations of one round: about the same total time for each size.
int repetitions(std::size_t bytes, const std::string& way, const Arguments& arguments) {
  if (arguments.smoke) return 3;
  const int many = bytes <= 4096 ? 2000 : bytes <= (64 << 10) ? 500 : bytes <= (1 << 20) ? 50 : 4;
  return way == kGloo ? std::max(2, many / 20) : many;
}

// ---- a rank ----

struct Way {
  std::string name;
  c10d::Backend& backend;
  at::Tensor tensor;
  at::Tensor summand{};  ///< of a bare add
};

void operate(Way& way, int times) {
  if (way.summand.defined()) {
    for (int i = 0; i < times; ++i) way.tensor.add_(way.summand);
    return;
  }
  std::vector<at::Tensor> tensors{way.tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;  // values stay 1 for any number of operations
  options.asyncOp = way.name == kAsync;
  for (int i = 0; i < times; ++i) way.backend.allreduce(tensors, options)->wait();
}

double round_us(Way& way, int times) {
  way.backend.barrier()->wait();
  const double start = now_s();
  operate(way, times);
  return (now_s() - start) * 1e6 / times;
}

void measure(std::vector<Way>& ways, std::size_t bytes, const Arguments& arguments) {
  const int rounds = arguments.smoke ? 1 : 3;
  for (Way& way : ways) operate(way, 2);
  for (int round = 0; round < rounds; ++round)
    for (Way& way : ways) {
      const double us = round_us(way, repetitions(bytes, way.name, arguments));
      if (arguments.rank == 0) std::cout << bytes << '\t' << us << '\t' << way.name << std::endl;
    }
  for (const Way& way : ways)
    require(way.tensor[-1].item<float>() == 1.0F, way.name, " computed a wrong average");
}

int run_rank(const Arguments& arguments) {
  at::set_num_threads(1);
  const auto store = c10::make_intrusive<c10d::FileStore>(arguments.folder + "/store", arguments.num_ranks);
  const auto request = [&](const char* name) {
    std::vector<int> ranks;
    for (int r = 0; r < arguments.num_ranks; ++r) ranks.push_back(r);
    return comm::BackendRequest{.store = c10::make_intrusive<c10d::PrefixStore>(name, store),
                                .rank = arguments.rank,
                                .size = arguments.num_ranks,
                                .group_name = name,
                                .world_ranks = ranks,
                                .host_ids = {},
                                .interface_addr = "127.0.0.1"};
  };
  const auto shm = comm::make_shm_backend(request("shm"));
  const auto gloo = comm::make_gloo_backend(request("gloo"));
  for (const std::size_t bytes : sizes(arguments)) {
    const auto count = static_cast<long>(bytes / sizeof(float));
    std::vector<Way> ways;
    ways.push_back({kInPlace, *shm, shm->allocateTensor(count, at::kFloat).fill_(1)});
    ways.push_back({kAsync, *shm, shm->allocateTensor(count, at::kFloat).fill_(1)});
    ways.push_back({kPrivate, *shm, at::ones({count})});
    const long share = count / arguments.num_ranks;
    ways.push_back({kBareAdd, *shm, at::ones({share}), at::zeros({share})});
    ways.push_back({kGloo, *gloo, at::ones({count})});
    measure(ways, bytes, arguments);
  }
  shm->barrier()->wait();
  shm->shutdown();
  return 0;
}

// ---- the benchmark ----

/// Runs a command line and reads its lines "BYTES <tab> MICROSECONDS [<tab> WAY]".
void collect(const std::string& command, const std::string& default_way, Samples& samples) {
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw InternalError(text("cannot start: ", command));
  std::array<char, 512> line{};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) {
    const std::vector<std::string> parts = split(trim(line.data()), '\t');
    if (parts.size() < 2) continue;
    const std::string way = parts.size() > 2 ? parts[2] : default_way;
    samples[{std::stoull(parts[0]), way}].push_back(std::stod(parts[1]));
  }
  const int status = ::pclose(pipe);
  if (status != 0) throw CommError(text("failed with status ", status, ": ", command));
}

std::string quoted(const std::string& word) { return "'" + word + "'"; }

void run_ours(const Arguments& arguments, Samples& samples) {
  std::string folder = (std::filesystem::temp_directory_path() / "bench_allreduce_XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) throw DataError(text("cannot make ", folder));
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string command = "(";
  for (int r = arguments.num_ranks - 1; r >= 0; --r)
    command += text(quoted(self), " -n ", arguments.num_ranks, arguments.smoke ? " --smoke" : "",
                    " --folder ", quoted(folder), " --rank ", r, r > 0 ? " & " : "");
  command += "; status=$?; wait; exit $status)";
  collect(command, "", samples);
  std::filesystem::remove_all(folder);
}

void run_mpi(const Arguments& arguments, Samples& samples) {
  if (arguments.mpi.empty()) return;
  collect(text("mpirun --allow-run-as-root --oversubscribe -n ", arguments.num_ranks, " ",
               quoted(arguments.mpi), arguments.smoke ? " --smoke" : ""),
          kMpi, samples);
}

struct Summary {
  double median;
  double low;   ///< first quartile
  double high;  ///< third quartile
};

Summary summary_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return {values[n / 2], values[n / 4], values[(3 * n) / 4]};
}

std::string first_match(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return std::string(trim(line.substr(line.find(':') + 1)));
  return "unknown";
}

void report(const Arguments& arguments, const Samples& samples) {
  const std::string machine = text(available_cores(), " cores, ", first_match("/proc/cpuinfo", "model name"));
  std::cerr << "all-reduce (f32 average), " << arguments.num_ranks << " ranks, " << machine << '\n'
            << "median us [quartiles], and how many times as long as shm in place\n";
  std::cout << "{\"question\": \"allreduce\", \"ranks\": " << arguments.num_ranks << ", \"machine\": \""
            << machine << "\", \"results\": [";
  const char* separator = "\n";
  for (const auto& [key, values] : samples) {
    const Summary summary = summary_of(values);
    const auto base = samples.find({key.bytes, kInPlace});
    const double ratio = base == samples.end() ? 0 : summary.median / summary_of(base->second).median;
    std::cerr << std::setw(10) << human_bytes(key.bytes) << "  " << std::left << std::setw(13) << key.way
              << std::right << std::fixed << std::setprecision(1) << std::setw(10) << summary.median << " ["
              << summary.low << ", " << summary.high << "]  " << std::setprecision(2) << ratio << "x\n";
    std::cout << separator << "  {\"bytes\": " << key.bytes << ", \"way\": \"" << key.way
              << "\", \"median_us\": " << summary.median << ", \"first_quartile_us\": " << summary.low
              << ", \"third_quartile_us\": " << summary.high << ", \"samples\": " << values.size()
              << ", \"ratio_to_shm_in_place\": " << ratio << "}";
    separator = ",\n";
  }
  std::cout << "\n]}" << std::endl;
  if (arguments.mpi.empty()) std::cerr << "without Open MPI: bench/allreduce.sh compares with it\n";
}

int run(const Arguments& arguments) {
  if (arguments.rank >= 0) return run_rank(arguments);
  Samples samples;
  for (int pass = 0; pass < arguments.passes; ++pass) {
    run_ours(arguments, samples);
    run_mpi(arguments, samples);
  }
  report(arguments, samples);
  return kExitOk;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const Error& error) {
    std::cerr << "bench_allreduce: " << error.what() << '\n';
    return error.exit_code();
  } catch (const std::exception& error) {
    std::cerr << "bench_allreduce: " << error.what() << '\n';
    return kExitInternal;
  }
}
