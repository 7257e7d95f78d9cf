#include "trireme/train/run/internal/data_record.h"

#include <map>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::train {
namespace {

struct SplitRecord {
  std::string samples, digest;  ///< empty: not known
};

/// The difference between two records of a split; empty: none.
std::string difference(const SplitRecord& then, const SplitRecord& now) {
  if (then.samples != now.samples) return text(then.samples, " samples then, ", now.samples, " now");
  if (then.digest.empty() || now.digest.empty() || then.digest == now.digest) return "";
  return text(now.samples, " samples as then, of other names, sizes or content");
}

SplitRecord split_in(const std::string& record, const std::string& split) {
  std::map<std::string, std::string> facts;
  for (const std::string& line : trireme::split(record, '\n')) {
    const std::size_t space = line.find(' ');
    if (space != std::string::npos) facts[line.substr(0, space)] = line.substr(space + 1);
  }
  return {.samples = facts[split + "_samples"], .digest = facts[split + "_digest"]};
}

}  // namespace

std::string data_record_of(const data::DataSource& data) {
  return text("train_samples ", data.train->size(), "\ntrain_digest ", data.train_digest, "\ntest_samples ",
              data.test ? data.test->size() : 0, "\ntest_digest ", data.test_digest, "\n");
}

void check_same_data(const data::DataSource& data, const std::string& record, const Log& log) {
  if (record.empty()) return;
  const std::string now = data_record_of(data);
  const std::string of_train = difference(split_in(record, "train"), split_in(now, "train"));
  if (!of_train.empty()) {
    throw DataError(text("the training data of data set '", data.name,
                         "' are not those of the checkpoint: ", of_train,
                         "; the run would continue with other samples, in another order. Put the data of the "
                         "checkpoint back, or start a fresh run with model.weights = the checkpoint's "
                         "model.safetensors"));
  }
  const std::string of_test = difference(split_in(record, "test"), split_in(now, "test"));
  if (!of_test.empty())
    log.warning("resume: the ", data.held_out, " data of data set '", data.name,
                "' are not those of the checkpoint: ", of_test,
                "; evaluations before and after the resume cannot be compared");
}

}  // namespace trireme::train
