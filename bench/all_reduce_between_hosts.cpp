// Question: how long does an all-reduce between hosts take, by size and algorithm: gloo's, each list of
// transfers, and the choice of comm.all_reduce = "auto"? How long do a reduce-scatter and an all-gather of
// the same whole tensor take, with gloo and with Trireme?
//   trireme launch ... -- bench_all_reduce_between_hosts [--rounds R] [--sizes BYTES,...] [--sites N]
//   bench_all_reduce_between_hosts --smoke
// One rank on each host; bench/all_reduce_between_hosts.sh makes hosts and links. The algorithms take turns,
// round by round. An operation ends when it has ended on all ranks. One number is the mean of a round's
// operations, the maximum over ranks. JSON on standard output of rank 0, microseconds. With --smoke ranks are
// threads.

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/all_reduce_setting.h"
#include "trireme/comm/context.h"
#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/internal/rendezvous.h"
#include "trireme/topology/networks.h"

namespace {

using namespace trireme;

struct Arguments {
  int rounds = 9;
  std::vector<std::int64_t> sizes = {1 << 10, 64 << 10, 1 << 20, 25 << 20};
  int sites = 1;  ///< sites that hosts report, in order, with the same number of hosts each
  bool smoke = false;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] {
      require(i + 1 < argc, "option ", word, " needs a value");
      return std::string(argv[++i]);
    };
    if (word == "--smoke") {
      arguments = {.rounds = 2, .sizes = {1 << 10}, .smoke = true};
    } else if (word == "--rounds") {
      arguments.rounds = std::stoi(value());
    } else if (word == "--sites") {
      arguments.sites = std::stoi(value());
    } else if (word == "--sizes") {
      arguments.sizes.clear();
      for (const auto& size : split(value(), ',')) arguments.sizes.push_back(std::stoll(size));
    } else {
      throw InvalidArgument(text("unknown option '", word, "'; known: --smoke, --rounds, --sizes, --sites"));
    }
  }
  return arguments;
}

constexpr const char* kOverUcx = "auto over ucx";

using Backend = c10::intrusive_ptr<c10d::Backend>;

struct Way {
  std::string name;
  Backend backend;
  double made_s = 0;  ///< time to connect and to measure
  int times = 1;      ///< operations of a round
  std::vector<double> times_us{};
};

enum class What { kAllReduce, kReduceScatter, kAllGather };
constexpr std::pair<What, const char*> kWhats[] = {{What::kAllReduce, "all_reduce"},
                                                   {What::kReduceScatter, "reduce_scatter"},
                                                   {What::kAllGather, "all_gather"}};

void all_reduce(c10d::Backend& backend, at::Tensor tensor, c10d::ReduceOp op) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  backend.allreduce(tensors, options)->wait();
}

/// The tensor keeps its values, all ones. `part`: the part of one rank.
void run_once(What what, c10d::Backend& backend, at::Tensor& tensor, at::Tensor& part) {
  c10d::ReduceScatterOptions average;
  average.reduceOp = c10d::ReduceOp::AVG;
  if (what == What::kAllReduce) return all_reduce(backend, tensor, c10d::ReduceOp::AVG);
  if (what == What::kReduceScatter) return (void)backend._reduce_scatter_base(part, tensor, average)->wait();
  backend._allgather_base(tensor, part)->wait();
}

/// Mean time of an operation. All ranks run the same number of them.
double operation_us(What what, Way& way, at::Tensor& tensor, int times) {
  at::Tensor part = at::ones({tensor.numel() / way.backend->getSize()});
  way.backend->barrier()->wait();
  const double began_s = now_s();
  for (int i = 0; i < times; ++i) run_once(what, *way.backend, tensor, part);
  at::Tensor took = at::tensor({(now_s() - began_s) * 1e6 / times}, at::kDouble);
  all_reduce(*way.backend, took, c10d::ReduceOp::MAX);
  return took.item<double>();
}

void measure(What what, std::vector<Way*>& ways, std::int64_t bytes, const Arguments& arguments) {
  const std::int64_t size = ways.front()->backend->getSize();
  at::Tensor tensor = at::ones({bytes / 4 / size * size});
  for (Way* way : ways) {
    way->times_us.clear();
    operation_us(what, *way, tensor, 1);
    way->times = std::clamp(static_cast<int>(100e3 / operation_us(what, *way, tensor, 1)), 1, 50);
  }
  for (int round = 0; round < arguments.rounds; ++round) {
    for (Way* way : ways) way->times_us.push_back(operation_us(what, *way, tensor, way->times));
  }
  require(tensor.min().item<float>() == 1 && tensor.max().item<float>() == 1, "a wrong average");
}

void report(const char* what, std::vector<Way*>& ways, std::int64_t bytes) {
  for (Way* each : ways) {
    Way& way = *each;
    std::ranges::sort(way.times_us);
    const std::size_t n = way.times_us.size();
    std::cout << "{\"what\": \"" << what << "\", \"bytes\": " << bytes << ", \"way\": \"" << way.name
              << "\", \"median_us\": " << way.times_us[n / 2]
              << ", \"first_quartile_us\": " << way.times_us[n / 4]
              << ", \"third_quartile_us\": " << way.times_us[3 * n / 4] << ", \"samples\": " << n
              << ", \"made_s\": " << way.made_s << "}" << std::endl;
  }
}

void run_rank(const comm::BackendRequest& request, const Arguments& arguments) {
  at::set_num_threads(1);
  std::vector<Way> ways;
  const auto add = [&](const std::string& name, const std::string& all_reduce, const std::string& network) {
    comm::BackendRequest of_way = request;
    of_way.store = c10::make_intrusive<c10d::PrefixStore>("bench " + name, request.store);
    of_way.all_reduce = all_reduce;
    of_way.network = network;
    of_way.all_reduce_book = std::make_shared<comm::AllReduceBook>();  // each algorithm measures for itself
    const double began_s = now_s();
    ways.push_back({.name = name, .backend = comm::make_hierarchical_backend(of_way)});
    ways.back().made_s = now_s() - began_s;
  };
  for (const std::string& name : comm::all_reduce_names()) add(name, name, topology::kNetworkTcp);
  const bool has_ucx = topology::network_unavailable_because(topology::kNetworkUcx).empty();
  if (has_ucx) add(kOverUcx, comm::kAllReduceAuto, topology::kNetworkUcx);
  for (const auto& [what, name] : kWhats) {
    // Algorithms by name are those of all-reduces. Shards use "auto" or gloo.
    std::vector<Way*> compared;
    for (Way& way : ways) {
      if (what == What::kAllReduce || way.name == comm::kAllReduceAuto ||
          way.name == comm::kAllReduceByGloo || way.name == kOverUcx)
        compared.push_back(&way);
    }
    for (const std::int64_t bytes : arguments.sizes) {
      measure(what, compared, bytes, arguments);
      if (request.rank == 0) report(name, compared, bytes);
    }
  }
  ways.front().backend->barrier()->wait();
}

void run_threads(int size, const Arguments& arguments) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      comm::BackendRequest request{.store = store,
                                   .rank = rank,
                                   .size = size,
                                   .group_name = "bench",
                                   .world_ranks = {},
                                   .host_ids = {},
                                   .interface_addr = "127.0.0.1"};
      for (int i = 0; i < size; ++i) {
        request.world_ranks.push_back(i);
        request.host_ids.push_back(text("host ", i));
      }
      run_rank(request, arguments);
    });
  }
  for (auto& rank : ranks) rank.join();
}

void run_processes(const Arguments& arguments) {
  const auto context = comm::Context::from_environment({.backend = "gloo"});
  const auto& environment = context->environment();
  comm::BackendRequest request{.store = c10::intrusive_ptr<c10d::Store>::reclaim_copy(&context->store()),
                               .rank = context->rank(),
                               .size = context->world_size(),
                               .group_name = "bench",
                               .world_ranks = {},
                               .host_ids = {},
                               .interface_addr = comm::interface_towards(environment),
                               .secret = environment.secret};
  for (int rank = 0; rank < context->world_size(); ++rank) {
    request.world_ranks.push_back(rank);
    const int site = rank * arguments.sites / context->world_size();
    request.host_ids.push_back(text("site ", site, "/host ", rank));
  }
  run_rank(request, arguments);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    if (arguments.smoke) {
      run_threads(2, arguments);
    } else {
      run_processes(arguments);
    }
    return 0;
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << '\n';
    return error.exit_code();
  }
}
