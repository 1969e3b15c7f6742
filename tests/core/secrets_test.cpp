#include "core/secrets.h"

#include <gtest/gtest.h>

#include <utility>

namespace cleave {
namespace {

TEST(Secrets, AreDetectedByTheWordsOfAName) {
  for (const char* name : {"DB_PASS",
                           "OPENAI_KEY",
                           "SMTP_PWD",
                           "hf_token",
                           "HF_TOKEN",
                           "CLEAVE_TOKEN",
                           "AZUREML_RUN_TOKEN",
                           "AWS_SECRET_ACCESS_KEY",
                           "AWS_ACCESS_KEY_ID",
                           "MY_PASSWORD",
                           "PGPASSWORD",
                           "MYSQL_PWD",
                           "GITHUB_PAT",
                           "NPM_AUTH",
                           "SENTRY_DSN",
                           "WANDB_API_KEY",
                           "apiKey",
                           "hfToken",
                           "HFTOKEN",
                           "--auth-token",
                           "GOOGLE_APPLICATION_CREDENTIALS",
                           "AZURE_STORAGE_CONNECTION_STRING",
                           "STORAGE_SAS",
                           "JWT",
                           "SSH_PRIVATE_KEY",
                           "db.passwd",
                           "KEY_PASSPHRASE",
                           "OPENAI_KEY_2",
                           "SLACK_BOT_TOKEN_FILE"})
    EXPECT_TRUE(is_secret(name)) << name;
  for (const char* name : {"RANK",
                           "TOKENIZERS_PARALLELISM",
                           "PYTHONPATH",
                           "KEYBOARD",
                           "PATH",
                           "PATTERN",
                           "--keep",
                           "MONKEY",
                           "PWD",
                           "OLDPWD",
                           "--tokens",
                           "--token_bytes",
                           "--jsonl_key",
                           "--pad_token",
                           "--tokenizer",
                           "--max_tokens",
                           "--pad_token_id",
                           "--num_key_value_heads",
                           "SSH_AUTH_SOCK",
                           "AUTHOR",
                           "COMPASS",
                           "bypass",
                           "--patience",
                           "PATCH_SIZE",
                           "--forward_pass",
                           "",
                           "--",
                           "passes",
                           "KEYS"})
    EXPECT_FALSE(is_secret(name)) << name;
}

TEST(Secrets, AreMaskedInText) {
  const std::pair<const char*, const char*> cases[] = {
      {"postgres://u:pw@h:5432/db", "postgres://u:masked@h:5432/db"},
      {"a http://u:p@w@h/x?y=1 b", "a http://u:masked@h/x?y=1 b"},
      {"s3://:pw@h", "s3://:masked@h"},
      {"https://h/c?sv=2&sig=ab%3D&se=9#f", "https://h/c?sv=2&sig=masked&se=9#f"},
      {"https://h/?access_token=t,http://v:w@i", "https://h/?access_token=masked"},
      {"redis://u:1@h redis://u:2@h", "redis://u:masked@h redis://u:masked@h"},
      {"https://u@h:80/a:b@c", "https://u@h:80/a:b@c"},
      {"{'a': 'hf_abcdefghijklmnopqrst'}", "{'a': 'masked'}"},
      {"https://ghp_0123456789abcdefghij@github.com/x", "https://masked@github.com/x"},
      {"hf_model sk-learn", "hf_model sk-learn"},
      {"/x/y:z@w", "/x/y:z@w"},
      {"://", "://"},
      {"", ""}};
  for (const auto& [text, shown] : cases) EXPECT_EQ(without_secrets(text), shown);
}

TEST(Secrets, AreMaskedInCommands) {
  using Argv = std::vector<std::string>;
  EXPECT_EQ(without_secrets(Argv{"python", "a.py", "--hf_token", "x", "--lr", "1", "--hf_token=y",
                                 "db.password=z", "--use_auth_token", "--keep", "2", "/data/key=1/x"}),
            (Argv{"python", "a.py", "--hf_token", "masked", "--lr", "1", "--hf_token=masked",
                  "db.password=masked", "--use_auth_token", "--keep", "2", "/data/key=1/x"}));
}

}  // namespace
}  // namespace cleave
