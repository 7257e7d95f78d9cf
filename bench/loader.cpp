// Question: how fast do batches arrive? Loads a data set for a consumer that only takes batches. Prints one
// line of JSON per number of workers: samples/s, the time of the first batch, and the share of the threads'
// time by stage. For comparison, bench/loader.sh runs torch.utils.data.DataLoader over the same files
// (bench/peers/loader.py). For images it also runs libjpeg-turbo alone, on one thread, with minimal other
// work.
//
//   bench_loader [--smoke] [--data fashion_mnist|text|image_folder|...] [--path P] [--workers N]...
//   [--seconds S] [--cache-samples-mib M]

#include <ATen/Parallel.h>
#include <turbojpeg.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/clock.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/data/dataset.h"

namespace {

using namespace trireme;

struct Settings {
  data::DataOptions data;
  std::vector<int> workers = {1};
  std::int64_t batch = 64;
  double seconds = 3;
  bool decoder_alone = false, smoke = false;
};

nlohmann::json load(const Settings& settings, const data::TrainingData& samples, int workers) {
  const double opened_s = now_s();
  const auto stream = samples.open({.global_batch = settings.batch, .workers = workers, .seed = 1});
  stream->next();
  const double first_s = now_s() - opened_s;
  if (settings.data.cache_samples_mib > 0) {
    const std::int64_t steps = data::BatchLayout(samples.size(), settings.batch).first_step_of(1);
    for (std::int64_t step = 1; step < steps; ++step) stream->next();
  }
  const double began_s = now_s();
  std::int64_t taken = 0;
  do taken += stream->next().global_size;
  while (now_s() - began_s < settings.seconds && !settings.smoke);
  const double lasted_s = now_s() - began_s;
  const data::LoadingReport report = stream->report();
  nlohmann::json line = {{"system", settings.data.cache_samples_mib > 0 ? "trireme, kept" : "trireme"},
                         {"data", settings.data.name},
                         {"workers", workers},
                         {"samples_per_s", static_cast<double>(taken) / lasted_s},
                         {"first_batch_ms", 1e3 * first_s}};
  for (std::size_t stage = 0; stage < data::kNumStages; ++stage) {
    line[std::string(data::name_of(static_cast<data::Stage>(stage)))] =
        report.counts.stage_s[stage] / report.counts.busy_s;
  }
  return line;
}

/// Decodes every file of the folder, read before, to RGB into one buffer.
nlohmann::json decode_alone(const Settings& settings) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(settings.data.path)) {
    if (entry.path().extension() == ".jpg") files.push_back(read_file(entry.path()));
  }
  const std::unique_ptr<void, int (*)(tjhandle)> decoder(tjInitDecompress(), tjDestroy);
  std::vector<unsigned char> pixels;
  const double began_s = now_s();
  std::int64_t decoded = 0;
  do {
    for (const std::string& file : files) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(file.data());
      int width = 0, height = 0, subsampling = 0, colours = 0;
      if (tjDecompressHeader3(decoder.get(), bytes, file.size(), &width, &height, &subsampling, &colours) !=
          0)
        continue;
      pixels.resize(static_cast<std::size_t>(width) * height * 3);
      tjDecompress2(decoder.get(), bytes, file.size(), pixels.data(), width, 0, height, TJPF_RGB,
                    TJFLAG_ACCURATEDCT);
      ++decoded;
    }
  } while (now_s() - began_s < settings.seconds && decoded > 0);
  return {{"system", "libjpeg-turbo"},
          {"data", settings.data.name},
          {"workers", 1},
          {"samples_per_s", static_cast<double>(decoded) / (now_s() - began_s)}};
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Loads a data set for a consumer that takes batches and does nothing else.");
  app.add_option("--data", settings.data.name);
  app.add_option("--path", settings.data.path);
  app.add_option("--block", settings.data.block);
  app.add_option("--workers", settings.workers);
  app.add_option("--cache-samples-mib", settings.data.cache_samples_mib, "measured from the second epoch on");
  app.add_option("--batch", settings.batch)->check(CLI::PositiveNumber);
  app.add_option("--seconds", settings.seconds)->check(CLI::PositiveNumber);
  app.add_flag("--decoder-alone", settings.decoder_alone, "libjpeg-turbo over the files of a folder instead");
  app.add_flag("--smoke", settings.smoke, "two batches");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  keep_freed_memory();
  if (settings.smoke) settings.data.name = "synthetic";
  if (settings.decoder_alone) {
    std::cout << decode_alone(settings) << std::endl;
    return 0;
  }
  const data::DataSource source = data::open_data(settings.data);
  for (const int workers : settings.workers) std::cout << load(settings, *source.train, workers) << std::endl;
  return 0;
}
