// A task with named tensors: a query tower and a document tower learn to match (retrieval). Queries have
// different numbers of words; `padded` pads them and adds a mask. A query has the topic of one of 8
// documents.
//
//   example_two_towers train two_towers.toml -n 2 --timeline timeline.html
//   example_two_towers verify two_towers.toml -n 2 --set parallel.pipeline=2
#include <torch/nn/modules/embedding.h>

#include "trireme/app/run_app.h"
#include "trireme/base/random.h"
#include "trireme/data/collate.h"

using namespace trireme;

constexpr int kTopics = 50, kWordsOfATopic = 8, kChoices = 8, kWidth = 32;

struct Searches : data::Dataset {
  Searches(std::int64_t searches, std::int64_t split) : size_(searches), split_(split) {}
  std::int64_t size() const override { return size_; }
  data::Example get(std::int64_t index) const override {
    Random random(7, split_, index);
    const auto below = [&](int bound) { return static_cast<std::int64_t>(random.below(bound)); };
    const auto words_about = [&](std::int64_t topic, std::int64_t count) {
      at::Tensor words = at::empty({count}, at::kLong);
      for (std::int64_t i = 0; i < count; ++i)  // a third of them are about anything
        words[i] = (random.below(3) == 0 ? below(kTopics) : topic) * kWordsOfATopic + below(kWordsOfATopic);
      return words;
    };
    const std::int64_t topic = below(kTopics), right = below(kChoices);
    batch::Tensors documents;
    for (int i = 0; i < kChoices; ++i)
      documents.push_back(words_about(i == right ? topic : below(kTopics), 12));
    return {{{"query", words_about(topic, 1 + below(6))}, {"documents", at::stack(documents)}},
            at::scalar_tensor(right, at::kLong)};
  }
  const std::int64_t size_, split_;
};

struct TwoTowers : model::Model {
  TwoTowers() { register_module("query", of_query), register_module("document", of_document); }
  Fields forward_all(const Fields& inputs) override { return score(meet(inputs)); }
  std::vector<model::Layer> layers() override {  // what a pipeline may cut
    const auto first = [this](const Fields& in) { return meet(in); };
    const auto second = [this](const Fields& in) { return score(in); };
    return {model::make_layer(*this, "query", {of_query.ptr()}, first),
            model::make_layer(*this, "document", {of_document.ptr()}, second)};
  }
  Fields meet(const Fields& in) {
    const at::Tensor there = in["there"].unsqueeze(2).to(at::kFloat);
    return {{"meaning", (of_query->forward(in["query"]) * there).sum(1)}, {"documents", in["documents"]}};
  }
  at::Tensor score(const Fields& in) {  // (batch, documents)
    return (of_document->forward(in["documents"]).mean(2) * in["meaning"].unsqueeze(1)).sum(2);
  }
  torch::nn::Embedding of_query{kTopics * kWordsOfATopic, kWidth},
      of_document{kTopics * kWordsOfATopic, kWidth};
};

/// Mean reciprocal rank: 1 if the right document is first, 1/2 if it is second, and so on; a sum over
/// samples.
objective::Sum reciprocal_rank(const at::Tensor& scores, const at::Tensor& right) {
  const at::Tensor rank = scores.ge(scores.gather(1, right.unsqueeze(1))).sum(1);
  return {rank.to(at::kDouble).reciprocal().sum(), static_cast<double>(rank.numel())};
}

std::shared_ptr<const data::Dataset> searches(std::int64_t size, std::int64_t split) {
  return data::padded(std::make_shared<Searches>(size, split), {{.field = "query", .mask = "there"}});
}

std::shared_ptr<TwoTowers> make_towers(const train::ModelTask&) { return std::make_shared<TwoTowers>(); }

data::DataSource open_searches(const train::DataTask&) {
  return {.name = "searches", .train = searches(8192, 0), .test = searches(2048, 1), .num_classes = kChoices};
}

int main(int argc, char** argv) {
  return run_app(argc, argv,
                 {.models = {{"two_towers", make_towers}},
                  .datasets = {{"searches", open_searches}},
                  .metrics = {{.name = "reciprocal_rank", .measure = reciprocal_rank}}});
}
