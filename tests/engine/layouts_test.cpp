// The same weights under other names and cut differently: MLX's stacked experts and split latent
// projections, fused and split gate and up, heads tied by what is in the file.
#include "tests/support/fixture_model.h"

namespace millrace::test {
namespace {

TEST(Layouts, StackedExperts) {
  for (const std::string name :
       {"qwen2_moe", "qwen3_moe", "glm4_moe", "deepseek_v3", "mixtral", "minimax_m2"}) {
    Fixture f(name);
    stack_experts(&f, "switch_mlp", {{"w1", "gate_proj"}, {"w2", "down_proj"}, {"w3", "up_proj"}});
    EXPECT_LT(f.off_as_folder(), kSame) << name;
  }
}

TEST(Layouts, SplitLatentProjections) {
  for (const std::string name : {"deepseek_v3", "deepseek_v2", "youtu"}) {
    Fixture f(name);
    split_latent(&f);
    EXPECT_LT(f.off_as_folder(), kSame) << name;
  }
}

TEST(Layouts, ExpertsBesideADensePartSplit) {
  Fixture f("gemma4_text_moe");
  split_gemma4_experts(&f);
  EXPECT_LT(f.off_as_folder(), kSame);
}

// MLX's files of Phi and GLM keep the fused projections; others are cut by hand.
TEST(Layouts, FusedGateAndUp) {
  for (const std::string name : {"llama", "qwen3", "gemma2"}) {
    Fixture f(name);
    for (int layer = 0;
         f.tensors.contains("model.layers." + std::to_string(layer) + ".mlp.gate_proj.weight");
         ++layer) {
      const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.";
      TensorF32 both = f.tensors.at(mlp + "gate_proj.weight");
      const TensorF32& up = f.tensors.at(mlp + "up_proj.weight");
      both.shape[0] *= 2;
      both.values.insert(both.values.end(), up.values.begin(), up.values.end());
      f.tensors.erase(mlp + "up_proj.weight"), f.tensors.erase(mlp + "gate_proj.weight");
      f.tensors[mlp + "gate_up_proj.weight"] = both;
    }
    EXPECT_LT(f.off_as_folder(), kSame) << name;
  }
}

TEST(Layouts, SplitGateAndUp) {
  for (const std::string name : {"phi3", "glm4", "glm"}) {
    Fixture f(name);
    for (int layer = 0; layer < 4; ++layer) {
      const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.";
      const TensorF32 both = f.tensors.at(mlp + "gate_up_proj.weight");
      const auto middle = both.values.begin() + static_cast<std::ptrdiff_t>(both.values.size() / 2);
      f.tensors.erase(mlp + "gate_up_proj.weight");
      f.tensors[mlp + "gate_proj.weight"] = {{both.shape[0] / 2, both.shape[1]},
                                             {both.values.begin(), middle}};
      f.tensors[mlp + "up_proj.weight"] = {{both.shape[0] / 2, both.shape[1]},
                                           {middle, both.values.end()}};
    }
    EXPECT_LT(f.off_as_folder(), kSame) << name;
  }
}

TEST(Layouts, HeadTiedByWhatIsThere) {
  Fixture own("llama"), tied("llama_tied_bias");
  own.config.erase("tie_word_embeddings"), tied.config.erase("tie_word_embeddings");
  EXPECT_LT(own.off_as_folder(), kSame);
  EXPECT_LT(tied.off_as_folder(), kSame);
  // Said to be tied, the copy of the embedding that some files hold is left out.
  tied.config["tie_word_embeddings"] = true;
  tied.tensors["lm_head.weight"] = tied.tensors.at("model.embed_tokens.weight");
  EXPECT_LT(tied.off_as_folder(), kSame);
}

TEST(Layouts, GgufErrorsNameTheFilesOwnKeys) {
  TempFolder temp;
  const auto message = [&](const std::string& architecture, std::map<std::string, GgufField> keys) {
    write_gguf(temp / "model.gguf", architecture, keys,
               {{"token_embd.weight", {{8, 64}, std::vector<float>(512, 1.0f)}}});
    const auto model = Model::open(temp / "model.gguf");
    return model ? std::string("opened") : model.error().message;
  };
  std::map<std::string, GgufField> keys = {{"block_count", 2u}, {"embedding_length", 64u}};
  EXPECT_NE(message("llama", keys).find("'llama.attention.head_count' is missing"),
            std::string::npos)
      << message("llama", keys);
  keys["attention.head_count"] = 4u, keys["attention.head_count_kv"] = 3u;
  EXPECT_NE(message("qwen3", keys).find("'qwen3.attention.head_count_kv'"), std::string::npos)
      << message("qwen3", keys);
  keys["attention.head_count_kv"] = 2u, keys["logit_scale"] = 2.0f;
  EXPECT_NE(message("qwen3", keys).find("'qwen3.logit_scale' = 2"), std::string::npos)
      << message("qwen3", keys);
}

}  // namespace
}  // namespace millrace::test
