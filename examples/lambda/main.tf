# A function behind Hapax, for Terraform: beside hapax-layer.zip and the function's src.zip.
variable "region" {
  default = "eu-west-1"
}

provider "aws" {
  region = var.region
}

resource "aws_dynamodb_table" "records" {
  name         = "hapax"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "id"
  range_key    = "part"

  attribute {
    name = "id"
    type = "B"
  }
  attribute {
    name = "part"
    type = "B"
  }
  ttl {
    attribute_name = "x"
    enabled        = true
  }
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_lambda_layer_version" "hapax" {
  layer_name               = "hapax"
  filename                 = "hapax-layer.zip"
  source_code_hash         = filebase64sha256("hapax-layer.zip")
  compatible_architectures = ["x86_64"]
}

resource "aws_iam_role" "payments" {
  name = "payments"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "lambda.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy_attachment" "logs" {
  role       = aws_iam_role.payments.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AWSLambdaSQSQueueExecutionRole"
}

resource "aws_iam_role_policy" "records" {
  role = aws_iam_role.payments.name
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:DeleteItem"]
      Resource = aws_dynamodb_table.records.arn
    }]
  })
}

resource "aws_lambda_function" "payments" {
  function_name    = "payments"
  role             = aws_iam_role.payments.arn
  filename         = "src.zip"
  source_code_hash = filebase64sha256("src.zip")
  handler          = "app.handler"
  runtime          = "python3.12"
  timeout          = 10
  layers           = [aws_lambda_layer_version.hapax.arn]

  environment {
    variables = {
      AWS_LAMBDA_EXEC_WRAPPER = "/opt/hapax-wrapper"
      HAPAX_STORE             = "dynamodb://${var.region}/${aws_dynamodb_table.records.name}"
    }
  }
}

resource "aws_sqs_queue" "orders" {
  name                       = "orders"
  visibility_timeout_seconds = 60
}

resource "aws_lambda_event_source_mapping" "orders" {
  event_source_arn        = aws_sqs_queue.orders.arn
  function_name           = aws_lambda_function.payments.arn
  function_response_types = ["ReportBatchItemFailures"]
}
