// Question: how long does a step of a pipeline of remote calls take, by the number of micro-batches? The
// experiment of PyTorch's tutorial "Distributed Pipeline Parallelism Using RPC". ResNet-50 in two halves is
// on two workers, and a third calls them: random images, one-hot labels, mean squared error, SGD. `splits` is
// the number of micro-batches of a batch (the tutorial's text once calls it their size). Three ranks;
// `trireme bench rpc-resnet50` starts them. In each round every number of splits takes its turn, so that
// noise affects all equally. Figures are medians over the rounds.

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/comm/context.h"
#include "trireme/remote/init.h"
#include "trireme/remote/optimizer.h"
#include "trireme/remote/pipe.h"
#include "trireme/telemetry/line_chart.h"
#include "trireme/telemetry/report_style.h"

namespace {

using namespace trireme;

struct Arguments {
  std::vector<std::int64_t> splits = {1, 2, 4, 8};
  std::int64_t batch = 120, image_size = 64, num_classes = 1000;
  int repeats = 5;
  std::string report = "report.html";
  bool json = false, smoke = false;
};

struct Row {
  std::int64_t splits = 0;
  std::vector<double> seconds;  ///< of a step, by round; sorted
  double loss = 0;              ///< of the last step
  double median() const { return seconds[seconds.size() / 2]; }
};

/// One step's seconds and loss.
std::pair<double, double> step(const rpc::Agent& agent, const remote::Pipe& pipe,
                               remote::DistributedOptimizer& optimizer, const at::Tensor& images,
                               const at::Tensor& labels) {
  const double start = now_s();
  remote::Context context(agent);
  const at::Tensor loss = torch::mse_loss(*pipe.forward(images).local_value(), labels);
  context.backward({loss});
  optimizer.step(context);
  return {now_s() - start, loss.item<double>()};
}

std::vector<Row> measure(const rpc::Agent& agent, const Arguments& arguments) {
  const std::int64_t size = arguments.image_size;
  const at::Tensor images = torch::randn({arguments.batch, 3, size, size});
  const at::Tensor labels =
      torch::one_hot(torch::randint(arguments.num_classes, {arguments.batch}), arguments.num_classes)
          .to(torch::kFloat32);
  const auto whole =
      remote::make_dist_resnet50(agent, {"worker1", "worker2"}, {"cpu", "cpu"}, /*num_splits=*/1,
                                 {.input_shape = {3, size, size}, .num_classes = arguments.num_classes});
  remote::DistributedOptimizer optimizer(agent, {.name = "sgd", .lr = 0.05, .momentum = 0},
                                         whole.parameters());
  std::vector<Row> rows;
  for (const std::int64_t splits : arguments.splits)
    rows.push_back({.splits = splits, .seconds = {}, .loss = 0});
  const auto run = [&](Row& row) {
    const auto pipe = whole.with({.chunks = row.splits, .checkpoint = remote::PipeCheckpoint::kNever});
    const auto [seconds, loss] = step(agent, pipe, optimizer, images, labels);
    row.loss = loss;
    return seconds;
  };
  for (Row& row : rows) run(row);  // warm-up
  for (int round = 0; round < arguments.repeats; ++round) {
    for (Row& row : rows) row.seconds.push_back(run(row));
  }
  for (Row& row : rows) std::sort(row.seconds.begin(), row.seconds.end());
  return rows;
}

std::string setting(const Arguments& arguments) {
  return text("ResNet-50, batch ", arguments.batch, " of ", arguments.image_size, " x ", arguments.image_size,
              ", two workers and a caller, ", arguments.repeats, " rounds, ", available_cores(), " cores, ",
              processor().model);
}

std::string fixed(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

std::string images_per_s(const Arguments& arguments, const Row& row) {
  return fixed(static_cast<double>(arguments.batch) / row.median(), 1);
}

std::string table(const Arguments& arguments, const std::vector<Row>& rows) {
  std::string out =
      "<table>\n<tr><th>micro-batches</th><th>s/step, median</th><th>least</th><th>most</th>"
      "<th>images/s</th></tr>\n";
  for (const Row& row : rows)
    out += text("<tr><td>", row.splits, "</td><td>", fixed(row.median(), 3), "</td><td>",
                fixed(row.seconds.front(), 3), "</td><td>", fixed(row.seconds.back(), 3), "</td><td>",
                images_per_s(arguments, row), "</td></tr>\n");
  return out + "</table>\n";
}

void write_page(const Arguments& arguments, const std::vector<Row>& rows) {
  telemetry::Series median{.name = "median", .points = {}, .colour = 0, .style = telemetry::LineStyle::kDots};
  for (const Row& row : rows) median.points.push_back({static_cast<double>(row.splits), row.median()});
  const telemetry::Chart chart{.title = "Seconds per step by number of micro-batches",
                               .unit = "s",
                               .series = {median},
                               .scale = telemetry::ChartScale::kFromZero,
                               .axis = "micro-batches"};
  write_file_atomic(
      arguments.report,
      text("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>A pipeline of remote "
           "calls</title>\n<style>",
           telemetry::kReportStyle, "</style></head>\n<body>\n<h1>A pipeline of remote calls</h1>\n<p>",
           setting(arguments), "</p>\n", table(arguments, rows), telemetry::figure_of(chart),
           "</body></html>\n"));
}

void print(const Arguments& arguments, const std::vector<Row>& rows) {
  if (arguments.json) {
    std::cout << "{\"batch\": " << arguments.batch << ", \"image_size\": " << arguments.image_size
              << ", \"rows\": [";
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::cout << (i == 0 ? "" : ", ") << "{\"splits\": " << rows[i].splits
                << ", \"seconds\": " << rows[i].median() << ", \"least\": " << rows[i].seconds.front()
                << ", \"most\": " << rows[i].seconds.back() << ", \"loss\": " << rows[i].loss << "}";
    }
    std::cout << "]}\n";
    return;
  }
  std::cout << setting(arguments) << "\n  splits   s/step (least to most)     images/s\n";
  for (const Row& row : rows) {
    char line[128];
    std::snprintf(line, sizeof line, "  %6ld   %6.3f (%.3f to %.3f)   %8.1f\n", static_cast<long>(row.splits),
                  row.median(), row.seconds.front(), row.seconds.back(),
                  static_cast<double>(arguments.batch) / row.median());
    std::cout << line;
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("ResNet-50 over two workers, by remote calls");
  Arguments arguments;
  app.add_option("--splits", arguments.splits)->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--batch", arguments.batch)->check(CLI::PositiveNumber);
  app.add_option("--image-size", arguments.image_size)->check(CLI::Range(32, 1024));
  app.add_option("--repeats", arguments.repeats)->check(CLI::PositiveNumber);
  const CLI::Option* report = app.add_option("--report", arguments.report);
  app.add_flag("--json", arguments.json);
  app.add_flag("--smoke", arguments.smoke);
  CLI11_PARSE(app, argc, argv);
  try {
    if (arguments.smoke) {
      arguments.batch = 8;
      arguments.image_size = 32;
      arguments.splits = {1, 2};
      arguments.repeats = 1;
      arguments.num_classes = 10;
    }
    const auto context = comm::Context::from_environment();
    require(context->world_size() == 3, "a caller and two workers are three ranks, not ",
            context->world_size(), ": start it by `trireme bench rpc-resnet50`");
    const auto agent = remote::init(*context, text("worker", context->rank()));
    if (context->is_main()) {
      const auto rows = measure(*agent, arguments);
      const bool writes_page = !arguments.smoke || report->count() > 0;
      if (writes_page) write_page(arguments, rows);
      print(arguments, rows);
      if (writes_page && !arguments.json) std::cout << "table and figure: " << arguments.report << "\n";
    }
    agent->leave();  // the workers serve until the caller leaves
    return kExitOk;
  } catch (const Error& error) {
    std::cerr << "bench_rpc_resnet50: " << error.what() << "\n";
    return error.exit_code();
  }
}
